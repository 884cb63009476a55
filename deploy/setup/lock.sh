#!/bin/sh
# Writes requirements.lock anew: every Python package with its version and hashes, for Python 3.11
# and later, without a word about where they came from. uv lives in an environment of its own that
# is thrown away. The bench of packing has a lock file of its own: its solver is no part of the product.
set -eu
cd "$(dirname "$0")/../.."
tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
python3 -m venv "$tool"
"$tool/bin/pip" install --quiet --disable-pip-version-check uv
locked() {
    output=$1
    shift
    "$tool/bin/uv" pip compile "$@" --generate-hashes --no-emit-index-url \
        --no-header --no-annotate --python-version 3.11 --quiet -o "$output"
    echo "$output: $(grep -c '==' "$output") packages"
}
locked requirements.lock pyproject.toml --extra dev
locked bench/packing/requirements.lock bench/packing/requirements.in
