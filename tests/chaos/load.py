"""People who use the cluster while it breaks, and what was promised to them (S5).

Each user has jobs of its own and does one thing after the other: submit, scale, restart, stop, at
the API of any host. An answer that never came is asked for again elsewhere, with the same key. In
the end every change in the store must be somebody's call, happened once, and what was acknowledged
last must be what the store has.
"""

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ozymandias.model.job import JobHead, JobKey
from ozymandias.sim.truth import Truth
from ozymandias.store import keys
from tests.chaos.cluster import ChaosCluster
from tests.chaos.watching import MARK, HeadChange
from tests.cluster.hosts.cluster import SOCKET, UnixConnection
from tests.cluster.kit import shell, web

PAUSE_SECONDS = (0.5, 5.0)
ANSWER_SECONDS_MAX = 15.0
INSTANCES_MAX = 3
ASKED_MAX = 8
SLEEP = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"
UNCERTAIN = frozenset({"outcome-unknown", "store-unavailable"})


@dataclass(slots=True, kw_only=True)
class Call:
    kind: str  # submit, scale, stop, restart
    job: JobKey
    began: float
    wanted: int = 0
    mark: str = ""
    asked: int = 0
    state: str = "unknown"  # done, refused, unknown
    changed: bool = False
    said: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        what = f" to {self.wanted}" if self.kind in ("scale", "submit") else ""
        return f"{self.kind} {self.job}{what} ({self.state}; {', '.join(self.said)})"

    @property
    def effect(self) -> tuple[JobKey, str, str]:
        return effect(self.job, self.kind, self.wanted, self.mark)


def effect(job: JobKey, kind: str, wanted: int, mark: str) -> tuple[JobKey, str, str]:
    """What a call does to a head, told so that a head's change can be compared with it."""
    detail = {"submit": mark, "scale": str(wanted)}.get(kind, "")
    return job, kind, detail


def document(name: str, kind: str, instances: int, mark: str) -> dict[str, Any]:
    more: dict[str, Any] = {"environment": {MARK: mark}}
    if kind == "web":
        return web(name, instances=instances, **more)
    if kind == "disk":
        more["volumes"] = [{"path": "/data", "space": "4M"}]
    job = shell(name, SLEEP, **more) | {"numInstances": instances}
    return job | ({"on_partition": "stop"} if kind == "only" else {})


class User(threading.Thread):
    def __init__(self, name: str, cluster: ChaosCluster, seed: int, stop: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._cluster = cluster
        self._dice = random.Random(f"{name} {seed}")
        self._stop_event = stop
        self._jobs = {f"{name}-{kind}": kind for kind in ("web", "plain", "disk", "only")}
        self._marks = 0
        self.calls: list[Call] = []
        # What the store must have in the end: instances and mark; None: gone; absent: not sure.
        self.sure: dict[str, tuple[int, str] | None] = dict.fromkeys(self._jobs)

    def run(self) -> None:
        while not self._stop_event.wait(self._dice.uniform(*PAUSE_SECONDS)):
            name = self._dice.choice(sorted(self._jobs))
            known = self.sure.get(name, (1, ""))
            kinds = ["submit"] if known is None else ["scale", "scale", "submit", "restart", "stop"]
            self._do(name, self._dice.choice(kinds))

    def _do(self, name: str, kind: str) -> None:
        job = keys.job_key("default", name)
        wanted = self._dice.randint(1, INSTANCES_MAX)
        self._marks += 1
        call = Call(
            kind=kind,
            job=job,
            wanted=wanted,
            mark=f"{name}.{self._marks}",
            began=time.monotonic(),
        )
        self.calls.append(call)
        path = f"/v1/jobs/default/{name}"
        method, path, body = {
            "submit": ("POST", "/v1/jobs", document(name, self._jobs[name], wanted, call.mark)),
            "scale": ("POST", f"{path}/scale", {"instances": wanted}),
            "restart": ("POST", f"{path}/restart", None),
            "stop": ("DELETE", path, None),
        }[kind]
        before = self.sure.pop(name, (-1, ""))
        while call.asked < ASKED_MAX and not self._ask(call, method, path, body):
            if self._stop_event.wait(self._dice.uniform(0.2, 2.0)):
                break
        call.seconds = time.monotonic() - call.began
        self._learn(name, call, before)

    def _learn(self, name: str, call: Call, before: tuple[int, str] | None) -> None:
        if call.state == "refused":
            if before != (-1, ""):
                self.sure[name] = before
            if "job-not-found" in call.said[-1]:
                self.sure[name] = None
        elif call.state == "done":
            match call.kind:
                case "submit":
                    self.sure[name] = (call.wanted, call.mark)
                case "stop":
                    self.sure[name] = None
                case "scale" if before:
                    self.sure[name] = (call.wanted, before[1])
                case _ if before and before != (-1, ""):
                    self.sure[name] = before

    def _ask(self, call: Call, method: str, path: str, body: Any) -> bool:
        """Once, at any host; whether the outcome is known now."""
        was_sent = call.asked > 0 and any(not said.startswith("unsent") for said in call.said)
        call.asked += 1
        try:
            host = self._cluster[self._dice.choice(self._cluster.names)]
            connection = UnixConnection(host.path(SOCKET), ANSWER_SECONDS_MAX)
            connection.connect()
        except (OSError, AssertionError) as error:
            call.said.append(f"unsent: {type(error).__name__}")
            return False
        try:
            content = None if body is None else json.dumps(body).encode()
            headers = {"Idempotency-Key": call.mark} if method == "POST" else {}
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            call.said.append(type(error).__name__)
            return False
        finally:
            connection.close()
        return self._judge(call, response.status, text, was_sent)

    def _judge(self, call: Call, status: int, text: bytes, was_sent: bool) -> bool:
        found = json.loads(text)
        if status in (200, 201):
            call.said.append(str(status))
            call.state, call.changed = "done", bool(found["changed"])
            return True
        slug = str(found.get("type", "")).rpartition("#")[2]
        call.said.append(f"{status} {slug}")
        if slug in UNCERTAIN or status == 503:
            return False
        if was_sent:
            # An earlier copy may have been carried out; a second stop then finds no job.
            return True
        call.state = "refused"
        return True


def changes(heads: Iterable[HeadChange]) -> Counter[tuple[JobKey, str, str]]:
    """What happened to heads, as the effect that a call would have."""
    found: Counter[tuple[JobKey, str, str]] = Counter()
    for job, before, after, mark in heads:
        kind = _kind(before, after)
        if kind:
            found[effect(job, kind, after.wanted if after else 0, mark)] += 1
    return found


def _kind(before: JobHead | None, after: JobHead | None) -> str:
    if after is None or after.deleting:
        return "stop" if before is not None and not before.deleting else ""
    if before is None or (before.uid, before.version) != (after.uid, after.version):
        return "submit"
    if before.restart != after.restart:
        return "restart"
    return "scale" if before.wanted != after.wanted else ""


def check_promises(
    users: Iterable[User], heads: Iterable[HeadChange], truth: Truth, foreign: set[JobKey]
) -> list[str]:
    """S5: acknowledged is done, once; refused is not done; what was last agreed on is there."""
    listed = list(users)
    least: Counter[tuple[JobKey, str, str]] = Counter()
    most: Counter[tuple[JobKey, str, str]] = Counter()
    by_effect: dict[tuple[JobKey, str, str], list[Call]] = {}
    for call in (call for user in listed for call in user.calls):
        by_effect.setdefault(call.effect, []).append(call)
        least[call.effect] += call.state == "done" and call.changed and call.asked == 1
        may = call.state == "unknown" or (call.state == "done" and (call.changed or call.asked > 1))
        most[call.effect] += may
    found = []
    happened = changes(heads)
    for one in sorted({*least, *happened}):
        if one[0] in foreign:
            continue
        calls = "; ".join(map(str, by_effect.get(one, ()))) or "nobody asked"
        if happened[one] < least[one]:
            found.append(f"S5 acknowledged and never happened: {calls}")
        if happened[one] > most[one]:
            found.append(f"S5 {one} happened {happened[one]} times: {calls}")
    for user in listed:
        found += _last_words(user, truth)
    return found


def _last_words(user: User, truth: Truth) -> list[str]:
    found = []
    for name, wanted in user.sure.items():
        job = keys.job_key("default", name)
        head, spec = truth.heads.get(job), truth.spec(job)
        if wanted is None or head is None or head.deleting:
            if (wanted is None) != (head is None or head.deleting):
                found.append(f"S5 {job} should be {wanted}, and the store has {head}")
            continue
        mark = dict(spec.containers[0].environment).get(MARK, "") if spec else ""
        if head.wanted != wanted[0] or (wanted[1] and mark != wanted[1]):
            found.append(f"S5 {job} should be {wanted}, and the store has {head.wanted}, {mark}")
    return found
