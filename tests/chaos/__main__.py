"""`python -m tests.chaos --minutes 10 --seed 1`: break real hosts for a while and tell what held.

Exit code 0: nothing was violated; 1: something was; 130: interrupted. Whatever happens, all hosts
and all they hold are removed. `OZY_KEEP_LOGS=directory` keeps the logs of all programs.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from ozymandias.store import keys
from tests.chaos import checks, load, report
from tests.chaos.cluster import ChaosCluster
from tests.chaos.nemesis import Nemesis
from tests.chaos.processes import Processes
from tests.chaos.watching import Watching
from tests.cluster.hosts.hosts import Hosts
from tests.cluster.hosts.traffic import Traffic
from tests.cluster.kit import web

SITE = "web.default.localhost"
SITE_JOB = keys.job_key("default", "web")
FOREIGN = {SITE_JOB, keys.job_key("default", "hog"), keys.job_key("default", "ghost")}
USERS = ("ann", "bob")


class Run:
    def __init__(self, arguments: argparse.Namespace, cluster: ChaosCluster) -> None:
        self._arguments = arguments
        self._cluster = cluster
        self._began = time.monotonic()
        self._stop = threading.Event()  # of users and nemesis
        self._lock = threading.Lock()
        self.outcome = report.Outcome(
            seed=arguments.seed,
            hosts=len(cluster.names),
            began=self._began,
            commit=commit(),
            minutes=arguments.minutes,
        )
        self.watching = Watching(cluster, self.violate)
        watching = self.watching
        self.processes = Processes(
            cluster.hosts, watching.truth, watching.left, watching.lock, self.violate
        )
        self.users = [load.User(name, cluster, arguments.seed, self._stop) for name in USERS]
        self.nemesis = Nemesis(
            cluster,
            arguments.seed,
            self.say,
            only=tuple(filter(None, arguments.only.split(","))),
            skip=tuple(filter(None, arguments.skip.split(","))),
        )

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f} s  {text}", flush=True)

    def violate(self, what: str) -> None:
        with self._lock:
            self.outcome.violations.append((time.monotonic(), what))
        self.say(f"VIOLATION {what}")

    def run(self) -> None:
        cluster = self._cluster
        cluster.submit(web("web", instances=len(cluster.names)))
        self.say(f"{len(cluster.names)} hosts, {len(self.nemesis.kinds)} kinds of faults")
        cluster.start_keeper()
        self.watching.start()
        self.processes.start()
        traffic = Traffic(cluster, SITE, pause_seconds=0.1)
        try:
            with traffic:
                for user in self.users:
                    user.start()
                until = time.monotonic() + 60 * self._arguments.minutes
                self.nemesis.run(until, self._stop)
                self._stop.set()
                for user in self.users:
                    user.join(timeout=60)
                self._rest()
        finally:
            self._stop.set()
            self.outcome.timeline = self.nemesis.timeline
            self.outcome.calls = [call for user in self.users for call in user.calls]
            self.outcome.requests = sum(traffic.answers.values())
            self.outcome.failures = traffic.failures
        self._judge()

    def _rest(self) -> None:
        """After the last fault: how long until all is well, does it stay so, is anything left."""
        ends = (one.heal + one.lingers for one in self.nemesis.timeline)
        healed = max(ends, default=time.monotonic())
        self.say("the last fault is healed")
        seconds, last = checks.converge(self._cluster, healed, self.say)
        self.outcome.converged_seconds, self.outcome.converged_last = seconds, last
        if seconds > checks.CONVERGED_SECONDS_MAX:
            self.violate(f"L2 at rest after {seconds:.1f} s: {last}")
        self.say(f"at rest after {seconds:.1f} s; the last thing: {last}")
        for what in checks.check_still(self._cluster) + checks.wait_orphans(self._cluster):
            self.violate(what)
        self.watching.catch_up()

    def _judge(self) -> None:
        with self.watching.lock:
            found = load.check_promises(
                self.users, self.watching.heads, self.watching.truth, FOREIGN
            )
        if self.watching.gaps:
            self.outcome.notes.append(
                f"history was compacted before it was seen, {self.watching.gaps} times"
            )
            found = [what for what in found if "never happened" not in what]
        found += checks.stop_everything(self._cluster)
        bugs = self._cluster.tracebacks()
        found += [f"S0 {bugs[:3000]}"] if bugs else []
        for what in found:
            self.violate(what)
        outcome = self.outcome
        blamed = Counter(report.attribute(f, outcome.timeline) for f in outcome.failures)
        if blamed[""]:
            first = next(f for f in outcome.failures if not report.attribute(f, outcome.timeline))
            self.violate(f"S9 {blamed['']} requests failed without a fault, first {first}")
        for thread, name in ((self.watching, "store"), (self.processes, "processes")):
            if not thread.is_looking:
                self.violate(f"S0 nobody looked at the {name} any more: this run shows nothing")
        for at, container in report.unjust(self.processes.unmeant, outcome.timeline):
            name = f"{container.instance} on {container.node} ({container.id[:12]})"
            self.violate(f"S7 {name} ended at {at - self._began:.1f} s, and nothing was wrong")
        self.watching.stop()
        self.processes.stop()
        overlaps = self.processes.overlaps
        longest = max((seconds for _, seconds in overlaps), default=0.0)
        answers = Counter(said for call in outcome.calls for said in call.said)
        outcome.notes += [
            "answers to users: " + ", ".join(f"{said} x {n}" for said, n in answers.most_common()),
            f"{self.watching.revisions} revisions, {self.watching.schedules} of schedules;"
            f" {load.changes(self.watching.heads).total()} changes of jobs, each traced to a call",
            f"{self.processes.looks} looks at all processes of pods",
            f"an instance of a job that may run twice did so {len(overlaps)} times, at most"
            f" {longest:.1f} s",
            f"{len(self.processes.ended)} containers ended, {len(self.processes.unmeant)} of them"
            " though they were to run on",
        ]


def commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="of faults; rest comes after")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=3, choices=(3, 4, 5))
    parser.add_argument("--report", type=Path, help="write the report there, as markdown")
    parser.add_argument("--only", default="", help="kinds of faults, with commas; default: all")
    parser.add_argument("--skip", default="", help="kinds of faults to leave out")
    return parser.parse_args()


def keep_logs(hosts: Hosts) -> None:
    if keep := os.environ.get("OZY_KEEP_LOGS"):
        for host in hosts:
            shutil.copytree(host.directory / "log", Path(keep) / host.name, dirs_exist_ok=True)


def main() -> int:
    arguments = parse()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also when started in the background
    # Ended like by Ctrl-C, so that everything is removed.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with Hosts.up(arguments.hosts) as hosts:
        cluster = ChaosCluster(hosts)
        try:
            cluster.bring_up()
        except AssertionError:
            print(cluster.last_words())
            raise
        run = Run(arguments, cluster)
        try:
            run.run()
        finally:
            cluster.stop_keeper()
            keep_logs(hosts)
            text = report.render(run.outcome)
            if arguments.report:
                arguments.report.write_text(text)
            print("\n" + text)
    return 1 if run.outcome.violations else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
