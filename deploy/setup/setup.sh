#!/bin/bash
# Brings what a fresh Debian 12 machine lacks, and only that: Debian packages, a virtual environment
# with the locked Python packages, images for demo and tests made on this machine. The packages are
# named alike in Debian 13 and Ubuntu 24.04, but for vagrant, which the latter does without.
#
# - Runs as root or asks sudo. Never touches the host's podman configuration.
# - Debian's own etcd and nginx services are kept from starting when they are installed from here;
#   a service that was there before is left as it is.
# - A step that was done for the same inputs is not done again (stamps hold a hash of the inputs).
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
digest() { cat "$@" | sha256sum | cut -c1-16; }
stamped() { [ "$(cat "$1" 2>/dev/null)" = "$2" ]; }

# Debian packages ---------------------------------------------------------------------------------

missing_packages() {
    wanted=$(sed 's/#.*//' deploy/setup/packages)
    present=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' $wanted 2>/dev/null | sed -n 's/^installed //p' || true)
    for package in $wanted; do
        grep -qx "$package" <<<"$present" || is_nowhere "$package" || printf '%s ' "$package"
    done
}

# A package that only some distributions have, and this one's lists (there are some) do not name.
is_nowhere() {
    grep -q "^$1 .*, if there is one\$" deploy/setup/packages &&
        apt-cache show python3 >/dev/null 2>&1 && ! apt-cache show "$1" >/dev/null 2>&1
}

install_packages() {
    command -v apt-get >/dev/null || fail "this is not a Debian machine; install by hand: $*"
    [ "$(id -u)" = 0 ] || command -v sudo >/dev/null || fail "root is needed to install: $*"
    say "installing Debian packages: $*"
    held=
    if [ -d /run/systemd/system ]; then
        for unit in etcd nginx; do
            if [ ! -e "/lib/systemd/system/$unit.service" ] && [ ! -e "/etc/systemd/system/$unit.service" ]; then
                held="$held $unit.service"
            fi
        done
        if [ -n "$held" ]; then
            say "keeping Debian's own services from starting:$held"
            as_root systemctl mask --quiet $held
        fi
    fi
    status=0
    # A failing mirror of another source must not stop us: what counts is whether install succeeds.
    as_root apt-get -qq update || say "apt-get update complained; trying on"
    set -- $(missing_packages)  # now that the lists tell what there is
    # RUNLEVEL=1 does for SysV scripts what the mask does for systemd's units.
    as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
        apt-get -qq -y -o Dpkg::Use-Pty=0 install --no-install-recommends "$@" >/dev/null || status=$?
    if [ -n "$held" ]; then
        as_root systemctl unmask --quiet $held
        as_root systemctl disable --quiet $held 2>/dev/null || true
    fi
    [ "$status" = 0 ] || fail "apt-get could not install: $*"
}

missing=$(missing_packages)
[ -z "$missing" ] || install_packages $missing

# Python ------------------------------------------------------------------------------------------

# Debian's own, whatever else comes first in PATH: it is the one that hosts have, and a tenth quicker
# than one that was built without profiles.
python=/usr/bin/python3
home() { "$1" -c 'import sys; print(sys.base_prefix, sys.version)' 2>/dev/null; }

stamp=.venv/.ozymandias-locked
inputs=$(digest requirements.lock pyproject.toml deploy/setup/setup.sh)
if [ ! -x .venv/bin/python ] || ! stamped "$stamp" "$inputs"; then
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$python must be 3.11 or newer"
    say "making .venv with the locked Python packages"
    [ "$(home .venv/bin/python)" = "$(home "$python")" ] || "$python" -m venv --clear .venv
    .venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
    .venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
    printf '%s' "$inputs" >"$stamp"
fi

# Images ------------------------------------------------------------------------------------------

if [ -f deploy/images/build.py ]; then
    as_root .venv/bin/python deploy/images/build.py | sed -u '/there already$/d'
fi
