"""Builds flanneld once and prints where it is; see deploy/setup/go_programs.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "setup"))
from go_programs import FLANNEL, ensure


def program() -> Path:
    """Where it is or will be."""
    return FLANNEL.path()


if __name__ == "__main__":
    sys.stdout.write(f"{ensure(FLANNEL)}\n")
