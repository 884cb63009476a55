"""`make demo`: a cluster of three on this machine, shown by the commands a person would type.

Every step runs the real `ozy` (and curl, nslookup) and shows the command and what it printed. State
and context are the demo's own, in a temporary directory. Whatever happens, everything is removed
at the end, unless KEEP=1 asks to leave it running.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

JOB = "hello-world"
HOST = f"{JOB}.localhost"
NAME = f"{JOB}.default.ozy.internal"
SCALED = 6
VICTIM = "n2"
STEP_SECONDS_MAX = 90.0


class Failed(Exception):
    """A step did not do what it should."""


class Demo:
    def __init__(self, directory: Path, job_file: Path) -> None:
        self.directory = directory
        self.state_dir = directory / "cluster"
        self.job_file = job_file
        self.ozy = str(Path(sys.executable).with_name("ozy"))
        # The terminal's width and colours stay; the user's own cluster does not come in.
        kept = {k: v for k, v in os.environ.items() if k not in ("OZY_API", "OZY_TOKEN")}
        self.environment = kept | {"OZY_CONTEXT": str(directory / "context.json")}
        self.started = time.monotonic()

    # Showing --------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        seconds = time.monotonic() - self.started
        self.write(f"\n{styled('1', f'[{seconds:5.1f} s] {text}')}\n")

    def write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def show(self, *command: str) -> str:
        """Type a command: shown as typed, its output as it comes. Fails if it fails."""
        shown = shlex.join(command).replace(f"{self.directory}/", "")
        self.write(f"{styled('36', f'$ {shown}')}\n")
        done = self.run(*command, capture=False)
        if done.returncode != 0:
            raise Failed(f"`{shown}` ended with {done.returncode}")
        return done.stdout

    def run(self, *command: str, capture: bool = True) -> subprocess.CompletedProcess[str]:
        program = {"ozy": self.ozy}.get(command[0], command[0])
        pipe = subprocess.PIPE if capture else None
        with subprocess.Popen(
            [program, *command[1:]],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=STEP_SECONDS_MAX)
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)  # it cleans up after itself; let it
                process.wait(timeout=STEP_SECONDS_MAX)
                raise
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def ask(self, *command: str) -> Any:
        """The same `ozy`, for programs: `-o json`."""
        done = self.run("ozy", *command, "-o", "json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def until(self, what: str, condition: Callable[[], bool]) -> float:
        """Wait for a condition; returns the seconds it took."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > STEP_SECONDS_MAX:
                raise Failed(f"{what}: not within {STEP_SECONDS_MAX:.0f} s")
            time.sleep(0.2)
        return time.monotonic() - began

    # Looking --------------------------------------------------------------------------------------

    def healthy(self) -> list[Mapping[str, Any]]:
        return [row for row in self.ask("ps") or () if row["job"] == JOB and row["healthy"]]

    def cluster(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads((self.state_dir / "cluster.json").read_text())
        return found

    # The story ------------------------------------------------------------------------------------

    def run_all(self) -> None:
        self.say("A cluster of three nodes on this machine, on real etcd and real podman")
        self.show("ozy", "up", "--state-dir", str(self.state_dir), "--memory", "1G", "--disk", "2G")
        self.show("ozy", "nodes")

        self.say("A job file, submitted to any of them")
        lines = self.job_file.read_text().splitlines()
        told = [
            line.partition(" #")[0] for line in lines if line.strip() and line.lstrip()[0] != "#"
        ]
        self.write("".join(f"    {line.rstrip()}\n" for line in told))
        self.show("ozy", "submit", str(self.job_file))
        self.show("ozy", "ps")

        self.names()
        self.say("Served by the ingress, chosen by the Host header")
        url = f"http://127.0.0.1:{self.cluster()['ingress_port']}/"
        self.show("curl", "--fail", "--silent", "--show-error", "-H", f"Host: {HOST}", url)

        self.say(f"Scaled to {SCALED}")
        self.show("ozy", "scale", JOB, str(SCALED))
        self.until("scaling", lambda: len(self.healthy()) == SCALED)
        self.show("ozy", "ps")

        self.lose_a_node(url)
        self.say("The node comes back")
        self.show("ozy", "node", "start", VICTIM)
        self.show("ozy", "nodes")

    def names(self) -> None:
        self.say("Named in DNS: asked from inside a pod, and from this host")
        instance = self.healthy()[0]["instance"]
        self.show("ozy", "exec", instance, "--", "nslookup", NAME)
        server = f"127.0.0.1:{self.cluster()['dns_port']}"
        self.show("busybox", "nslookup", NAME, server)
        # The short name, and port 80 of the pod's address, which reaches 8000 of the container.
        self.show("ozy", "exec", instance, "--", "wget", "-q", "-O", "-", f"http://{JOB}/")

    def lose_a_node(self, url: str) -> None:
        self.say(f"Power cut on {VICTIM}: its daemon and its pods are gone, without a good-bye")
        self.show("ozy", "node", "kill", VICTIM)
        codes: list[str] = []

        def healed() -> bool:
            codes.append(
                self.run(
                    *("curl", "--silent", "--output", "/dev/null", "--max-time", "10"),
                    *("--write-out", "%{http_code}", "-H", f"Host: {HOST}", url),
                ).stdout
            )
            rows = self.healthy()
            return len(rows) == SCALED and all(row["node"] != VICTIM for row in rows)

        seconds = self.until("healing", healed)
        self.write(
            f"All {SCALED} healthy on the other nodes {seconds:.1f} s after the power cut;"
            f" {codes.count('200')} of {len(codes)} requests were answered meanwhile.\n"
        )
        self.show("ozy", "ps")

    def end(self) -> None:
        self.say("Stopped, and everything removed")
        self.show("ozy", "stop", JOB)
        self.until("stopping", lambda: not self.ask("ps"))
        self.show("ozy", "down")

    def clean_up(self) -> None:
        """After a failure or an interruption: whatever is left of the cluster."""
        left = self.state_dir / "cluster.json"
        if left.exists():
            self.write("\nRemoving the cluster …\n")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.run("ozy", "down", "--state-dir", str(self.state_dir))
        if left.exists():
            down = f"{self.ozy} down --state-dir {self.state_dir}"
            sys.stderr.write(f"demo: it could not be removed: try `{down}`\n")
        else:
            shutil.rmtree(self.directory, ignore_errors=True)


def styled(code: str, text: str) -> str:
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ
    return text if plain else f"\033[{code}m{text}\033[0m"


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    keep = os.environ.get("KEEP", "") not in ("", "0")
    job_file = Path("jobspecs") / f"{JOB}.yaml"
    demo = Demo(Path(tempfile.mkdtemp(prefix="ozy-demo-")), job_file)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    code = 1
    try:
        demo.run_all()
        if keep:
            demo.say("KEEP=1: the cluster goes on running")
            context = f"export OZY_CONTEXT={demo.environment['OZY_CONTEXT']}"
            port = demo.cluster()["ingress_port"]
            demo.write(
                f"  {context}\n"
                f"  {demo.ozy} ps\n"
                f"  curl -H 'Host: {HOST}' http://127.0.0.1:{port}/\n"
                f"and to stop it:\n"
                f"  {demo.ozy} down && rm -r {demo.directory}\n"
            )
            return 0
        demo.end()
        code = 0
    except KeyboardInterrupt:
        code = 130
    except (Failed, OSError, subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        sys.stderr.write(f"\ndemo: {error}\n")
    # Cleaning up is not stopped half way by a second Ctrl-C.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    demo.clean_up()
    if code == 0:
        demo.say("Done; nothing is left behind")
    return code


if __name__ == "__main__":
    sys.exit(main())
