"""systemd's units for a host: the files of deploy/systemd, with the paths of this installation.

The files are units as they stand, for programs in /opt/ozymandias; rendering puts the real
directory in its place. A program below a home directory needs a hole in the wall around it.
"""

from dataclasses import dataclass
from pathlib import Path

SERVICES = (
    "ozymandias-guard.service",  # without it no exclusive pod is started
    "ozymandias.service",
    "ozymandias-ingress.service",
    "ozymandias-dns.service",
)
UNIT_DIR = Path("etc/systemd/system")
# Where each file goes, from the root directory.
DROP_INS = {
    "etcd-ozymandias.conf": UNIT_DIR / "etcd.service.d" / "ozymandias.conf",
    "podman-ozymandias.conf": UNIT_DIR / "podman.service.d" / "ozymandias.conf",
}
SYSUSERS = {"ozymandias.sysusers": Path("usr/lib/sysusers.d/ozymandias.conf")}
ASSUMED_BIN = "/opt/ozymandias/bin"
HOMES = ("home", "root")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    path: Path  # from the root directory
    text: str


def template(name: str) -> str:
    return (Path(__file__).parent / "systemd" / name).read_text()


def units(bin_dir: Path) -> tuple[Unit, ...]:
    """All files for systemd; `bin_dir` is where the programs are."""
    services = [
        Unit(path=UNIT_DIR / name, text=render(template(name), bin_dir)) for name in SERVICES
    ]
    others = [Unit(path=path, text=template(name)) for name, path in (DROP_INS | SYSUSERS).items()]
    return (*services, *others)


def render(text: str, bin_dir: Path) -> str:
    """systemd reads `%` as the beginning of a specifier and blanks as the end of a word."""
    quoted = str(bin_dir).replace("\\", "\\\\").replace("%", "%%").replace(" ", "\\x20")
    rendered = text.replace(ASSUMED_BIN, quoted)
    if is_in_a_home(bin_dir):
        rendered = rendered.replace("ProtectHome=yes", "ProtectHome=read-only")
    return rendered


def is_in_a_home(path: Path) -> bool:
    return len(path.parts) > 1 and path.parts[1] in HOMES
