#!/bin/sh
# Writes requirements.lock anew: every Python package with its version and hashes, for Python 3.11
# and later, without a word about where they came from. uv lives in an environment of its own that
# is thrown away.
set -eu
cd "$(dirname "$0")/../.."
tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
python3 -m venv "$tool"
"$tool/bin/pip" install --quiet --disable-pip-version-check uv
"$tool/bin/uv" pip compile pyproject.toml --extra dev --generate-hashes --no-emit-index-url \
    --no-header --no-annotate --python-version 3.11 --quiet -o requirements.lock
echo "requirements.lock: $(grep -c '==' requirements.lock) packages"
