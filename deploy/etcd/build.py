"""Builds a newer etcd than Debian's, once, and prints where it is; see setup/go_programs.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "setup"))
from go_programs import ETCD, ensure


def program() -> Path:
    """Where it is or will be."""
    return ETCD.path()


if __name__ == "__main__":
    sys.stdout.write(f"{ensure(ETCD)}\n")
