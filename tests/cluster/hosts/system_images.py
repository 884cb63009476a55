"""Images of what a cluster consists of, made here: CoreDNS, and this project with its Python.

No registry is needed. CoreDNS is one static program. The other image holds the Python that runs the
tests, the packages that the ingress imports and the libraries they are linked to, each at the very
path where it is here: so the installed commands work in it as they are.
"""

import functools
import io
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.cluster.hosts import programs
from tests.cluster.hosts.host import Host

COREDNS = "localhost/ozy-coredns:1"
PROJECT = "localhost/ozymandias:1"
COREFILE = "/etc/coredns/Corefile"
LEFT_OUT = (
    *("test", "tests", "idlelib", "tkinter", "lib2to3", "site-packages", "pydoc_data"),
    *("ensurepip", "distutils", "unittest", "sqlite3", "curses", "turtledemo", "venv"),
)
# Compiled modules stay, or every container would begin with compiling them.
LEFT_OUT_ENDS = (".a", ".opt-1.pyc", ".opt-2.pyc", ".pyi", ".exe")
IMPORTED = """\
import sys, ozymandias.daemon.ingress
print("\\n".join(sorted({m.__file__ for m in list(sys.modules.values())
                        if getattr(m, "__file__", None)})))
"""


def import_coredns(host: Host, corefile: str) -> None:
    """With the host's own Corefile in it."""
    files = {Path("/coredns"): programs.built("coredns")}
    archive = pack(files, {COREFILE: corefile})
    _import(host, archive, COREDNS, 'ENTRYPOINT ["/coredns"]')


def import_project(host: Host, toml: str) -> None:
    """With these settings in it."""
    archive = pack(python_files(), {programs.TOML: toml})
    _import(host, archive, PROJECT, f"ENV PATH={Path(sys.executable).parent}:/bin:/usr/bin")


def _import(host: Host, archive: bytes, name: str, change: str) -> None:
    file = host.path("/var/tmp/image.tar")
    file.write_bytes(archive)
    host.run("podman", "import", "--quiet", "--change", change, "/var/tmp/image.tar", name)
    file.unlink()


def pack(files: Mapping[Path, Path], texts: Mapping[str, str]) -> bytes:
    """An archive: path in the image -> file here, or its text."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for directory in ("tmp", "proc", "sys", "dev", "run"):
            made = tarfile.TarInfo(directory)
            made.type, made.mode = tarfile.DIRTYPE, 0o1777 if directory == "tmp" else 0o755
            tar.addfile(made)
        for target, source in sorted(files.items()):
            tar.add(source.resolve(), str(target).lstrip("/"), recursive=False)
        for path, text in texts.items():
            made = tarfile.TarInfo(path.lstrip("/"))
            made.size, made.mode = len(text.encode()), 0o644
            tar.addfile(made, io.BytesIO(text.encode()))
    return buffer.getvalue()


@functools.cache
def python_files() -> dict[Path, Path]:
    """Python, what the ingress imports, and the ingress."""
    prefix, venv = Path(sys.base_prefix), Path(sys.prefix)
    library = Path(sysconfig.get_path("stdlib"))
    packages = Path(sysconfig.get_path("purelib"))
    command = [sys.executable, "-c", IMPORTED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    tops = {
        packages / Path(line).relative_to(packages).parts[0]
        for line in done.stdout.splitlines()
        if Path(line).is_relative_to(packages)
    }
    own = Path(__file__).resolve().parents[3] / "ozymandias"
    found = set(_below(library))
    for top in (*tops, own):
        found.update(_below(top) if top.is_dir() else [top])
    found.update(packages.glob("*.pth"))
    executables = [prefix / "bin" / "python3", Path(sys.executable).resolve()]
    found.update([*executables, Path(sys.executable), venv / "pyvenv.cfg"])
    found.add(venv / "bin" / "ozymandias-ingress")
    found.add(Path(sys.executable).with_name("python3"))
    linked = [file for file in found if ".so" in file.name] + executables[-1:]
    return {file: file for file in (*found, *_libraries(linked))}


def _below(top: Path) -> Iterable[Path]:
    """Files of a package, less what is never imported."""
    for path in sorted(top.iterdir()):
        if path.is_dir():
            if path.name not in LEFT_OUT and "config-" not in path.name:
                yield from _below(path)
        elif not path.name.endswith(LEFT_OUT_ENDS) and "_tkinter" not in path.name:
            yield path


def _libraries(programs_: Iterable[Path]) -> set[Path]:
    """Shared libraries that these are linked to, by the word of ldd."""
    command = ["ldd", *map(str, programs_)]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    words = {word for line in lines for word in line.split() if word.startswith("/")}
    return {Path(word) for word in words if ".so" in word and not word.endswith(":")}
