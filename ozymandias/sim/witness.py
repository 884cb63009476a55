"""Invariants that need a memory: who was where when, who acted, who was promised what.

A `Witness` is told of every revision of the store (with who wrote it, where that is known) and of
everything that happens to pods on their hosts, each with its time. It remembers what it needs:

    S3   one owner  a node's record goes from one machine to another only when it had lapsed
    S4   starts     a pod is first started where it is to run, or was a moment before it was asked
                    for: what becomes of a call that hangs is no longer in the daemon's hands; and
                    nobody asks for it when its node's lease has lapsed
    S7   no unjust  a pod is stopped only where its slot is not to run, and restarted only by its
                    policy; what runs on a returning node and nobody else was given goes on
    S9   drained    a pod that served has left its names before it is stopped; a name means that a
                    probe has passed
    S13  breaker    most nodes missing at once, or unseen since the session began: nobody is
                    declared dead before its time
    S14  counted    who joins and takes work has told of everything that runs on it
    S16  ports      no pod finds its host port taken by another of ours
    L7   back-off   a pod that can't be made is not tried over and over

Everything else is looked up in `sim/invariants.py`, `sim/conduct.py` judges what daemons do of
their own accord (S10), and `sim/turns.py` whether who waited was let run in its turn (S2).
It asks no daemon anything.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from ozymandias.model.instance import SlotState
from ozymandias.model.job import JobHead, JobKey
from ozymandias.model.node import NodeName
from ozymandias.model.pod import PodId
from ozymandias.ports import Event
from ozymandias.sim import invariants, returns, rules
from ozymandias.sim.conduct import VIEW_SECONDS, Conduct
from ozymandias.sim.recorded import check_recorded
from ozymandias.sim.truth import Change, Truth
from ozymandias.sim.turns import Turns
from ozymandias.store import keys

LAG_SECONDS = 4.0  # how far behind a well daemon's work may be
WITHDRAW_SECONDS = 4.9  # how long a stop waits for names at most, less what clocks drift
COUNT_SECONDS = 5.0  # from the count of a node's pods until it is told, at most
DRIFT = 0.98  # of a time measured on a clock that may run fast
CREATES_MAX, CREATES_SECONDS = 12, 10.0  # of one pod: back-off doubles from half a second
STEADY_SECONDS = 20.0  # who has run for so long was seen to run by a node that returns now
QUIET_SECONDS = 10.0  # what has not changed for so long is known to a node that returns now
HEAD_CHANGED = Callable[[JobKey, JobHead | None, JobHead | None, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    lease_ttl_seconds: float = 15.0
    breaker_seconds: float = 60.0


@dataclass(slots=True, kw_only=True)
class PodHistory:
    to_run_until: float | None = None  # the last time its slot was to run here
    started_at: float = inf  # the last time
    asked_at: float | None = None  # when its daemon last asked for a start
    lapsed_seconds: float = 0.0  # for how long its node had no lease then, and had to know
    asked_to_stop: SlotState | None = SlotState.RUNNING  # what its slot was to do then
    stopping_since: float | None = None
    has_passed: bool = False  # a probe, in some run
    is_restarting: bool = False
    has_failed: bool = False  # a probe, or its network, since it was last restarted
    created: deque[float] = field(default_factory=lambda: deque(maxlen=CREATES_MAX))


@dataclass(slots=True, kw_only=True)
class NodeHistory:
    absent_since: float | None = -inf  # never seen
    is_revoked: bool = False  # its lease went before its time, which it can't know
    machine: str = ""
    degraded: str = "never seen"
    session: str = ""
    session_since: float = 0.0
    written_at: float = -inf  # its record
    pods: dict[PodId, SlotState] = field(default_factory=dict)


class Witness:
    def __init__(
        self, rules: Rules, now: Callable[[], float], violate: Callable[[str], None]
    ) -> None:
        self.truth = Truth()
        self._conduct = Conduct(self.truth, now, lambda node: self.is_tended(node))
        self._turns = Turns(self.truth)
        self.on_head: list[HEAD_CHANGED] = []
        self.schedule_revisions = 0
        self.is_lagging: Callable[[NodeName], bool] = lambda node: False
        self.is_tended: Callable[[NodeName], bool] = lambda node: False  # by operators, now
        self.adopted_at: Callable[[NodeName], float] = lambda node: inf  # its lease, the last time
        self.running_on: Callable[[str], Iterable[PodId]] = lambda machine: ()
        self.is_up: Callable[[PodId], bool] = lambda pod: False  # all of it runs on its host
        self._rules = rules
        self._now = now
        self._violate = violate
        self._nodes: dict[NodeName, NodeHistory] = {}
        self._pods: dict[PodId, PodHistory] = {}
        self._epochs: dict[tuple[NodeName, str], int] = {}  # node, process -> its record's
        self._touched: dict[JobKey, float] = {}  # when anything of a job's schedule changed last

    # The store ----------------------------------------------------------------------------------

    def commit(
        self,
        revision: int,
        events: Sequence[Event],
        actor: tuple[NodeName, str] | None,
        sent_at: float | None = None,
    ) -> None:
        """One revision; ``actor`` is the node and process that wrote it, None: nobody knows.

        ``sent_at`` is when it first asked for that: what is in doubt is asked for again as it was.
        """
        truth = self.truth
        heads = {
            job: truth.heads.get(job)
            for event in events
            if event.kv.key.startswith(keys.JOBS) and (job := _job_of(event.kv.key))
        }
        if actor is None or any(e.kv.key.startswith(keys.ASSIGNMENTS) for e in events):
            holding = {node for node, own in truth.assignments.items() if own}
        else:
            holding = set()  # nobody loses anything here
        found = invariants.check_marks(truth, events)
        change = truth.take_in(events)
        tended = {node for node in change.nodes if self.is_tended(node)}
        if actor and any(not e.kv.key.startswith(keys.FORMAT) for e in events):
            found += invariants.check_fence(truth, *actor, epoch=self._epochs.get(actor, 0))
        if change.is_schedule:
            self.schedule_revisions += 1
            found += invariants.check_capacity(truth, change.nodes, self._handed(change))
            found += invariants.check_one_place(truth, change.jobs)
            found += invariants.check_one_each(truth, change.jobs)
            found += invariants.check_claims(truth)
            found += rules.check_rules(truth, change, tended)
            found += self._check_returned(change)
        for job, before in heads.items():
            found += invariants.check_whole(truth, job, before)
        found += self._check_losses(change, actor, holding, sent_at)
        found += invariants.check_given(truth, change, tended)
        found += check_recorded(change, events, is_ours=actor is not None)
        if change.named:
            found += invariants.check_names(truth, change.named)
            found += self._check_new_names(events)
        found += self._check_owners(change)
        found += self._turns.check(change)
        handed = self._handed(change)
        ended = self._remember(change)
        is_trusted = actor is not None and not self._is_behind(actor[0], sent_at)
        found += self._conduct.check(change, heads, ended, handed, is_trusted=is_trusted)
        for what in found:
            self._violate(what)
        for job, before in heads.items():
            for hook in self.on_head:
                hook(job, before, truth.heads.get(job), revision)

    def _is_behind(self, node: NodeName, sent_at: float | None) -> bool:
        """Whether what it does now may have been decided on an old view.

        So it is when it was asked for a while ago and its answer was lost: it is asked for again as
        it was, for statuses are not among what is compared.
        """
        is_late = sent_at is not None and sent_at < self._now() - VIEW_SECONDS
        return is_late or self.is_lagging(node)

    def has_held(self, node: NodeName, process: str) -> bool:
        """Whether that process ever held the node's record."""
        return (node, process) in self._epochs

    def lose_lease(self, node: NodeName) -> None:
        """It is about to be revoked before its time."""
        self._nodes.setdefault(node, NodeHistory()).is_revoked = True

    def _handed(self, change: Change) -> set[NodeName]:
        """The nodes that another machine stands for from now on."""
        presences = self.truth.presences
        return {
            name
            for name in change.presences & presences.keys() & self._nodes.keys()
            if presences[name].machine_id != self._nodes[name].machine
        }

    def _check_owners(self, change: Change) -> list[str]:
        found = []
        for name in sorted(change.presences & self._nodes.keys()):
            presence, node = self.truth.presences.get(name), self._nodes[name]
            if presence is None:
                continue
            if node.absent_since is None and presence.machine_id != node.machine:
                found.append(f"S3 {name} was taken over by another machine while it was there")
            if not presence.degraded and (node.absent_since is not None or node.degraded):
                found += self._check_counted(name, presence.machine_id)
        return found

    def _check_counted(self, name: NodeName, machine: str) -> Iterator[str]:
        """It takes work from now on. What has just been started may have come in between."""
        lately = self._now() - COUNT_SECONDS
        for pod in sorted(self.running_on(machine)):
            is_known = pod in self.truth.pods_of(name)
            if not is_known and self._pod(pod).started_at < lately and not self.is_lagging(name):
                yield f"S14 {name} takes work, and nobody knows that {pod.name} runs there"

    def _remember(self, change: Change) -> list[PodId]:
        """Take it in; the pods that were to run and are not any more."""
        now, ended = self._now(), list[PodId]()
        self._touched.update(dict.fromkeys(change.jobs, now))
        for name in change.presences:
            presence = self.truth.presences.get(name)
            if presence is None and name not in self._nodes:
                continue  # garbage under a name that no node has
            node = self._nodes.setdefault(name, NodeHistory())
            if presence is None:
                if node.absent_since is None:  # else garbage, where nobody was
                    node.absent_since = now
            else:
                # A record that says nothing new is that of a daemon which was away, and goes on; or
                # one more copy of what it wrote, if it has not asked for its lease since.
                is_told = presence.degraded != node.degraded
                is_copy = not is_told and self.adopted_at(name) <= node.written_at
                is_same = node.absent_since is None and presence.session == node.session
                if not (is_same and (is_told or is_copy)):
                    node.session, node.session_since = presence.session, now
                node.written_at = now
                node.absent_since, node.is_revoked = None, False
                node.machine, node.degraded = presence.machine_id, presence.degraded
                record = self.truth.kvs[keys.node(name)]
                self._epochs[name, presence.session] = record.create_revision
        for name in sorted(change.nodes):
            node = self._nodes.setdefault(name, NodeHistory())
            before, node.pods = node.pods, self.truth.pods_of(name)
            for pod, state in before.items():
                if state is SlotState.RUNNING and node.pods.get(pod) is not state:
                    self._pod(pod).to_run_until = now
                    ended.append(pod)
            for pod, state in node.pods.items():
                if state is SlotState.STOPPING and before.get(pod) is not state:
                    self._pod(pod).stopping_since = now
        return ended

    def _check_returned(self, change: Change) -> list[str]:
        """A node entered what it found: is anything to stop that could have gone on?"""
        found = []
        for name in sorted(change.nodes):
            before = self._nodes[name].pods if name in self._nodes else {}
            for pod, state in self.truth.pods_of(name).items():
                is_new = state is SlotState.STOPPING and pod not in before
                if is_new and self._is_steady(pod) and returns.could_go_on(self.truth, pod):
                    found.append(f"S7 {pod.name} is to stop though nobody else was given its slot")
        return found

    def _is_steady(self, pod: PodId) -> bool:
        """Whether a node could know, when it entered this pod, that it runs and is lacking."""
        history, now = self._pod(pod), self._now()
        if history.has_failed or history.stopping_since is not None or self.truth.unreadable:
            return False
        if now - history.started_at < STEADY_SECONDS:
            return False
        is_quiet = now - self._touched.get(pod.key, -inf) >= QUIET_SECONDS
        return is_quiet and self.is_up(pod) and not self.is_lagging(pod.node)

    def _check_losses(
        self,
        change: Change,
        actor: tuple[NodeName, str] | None,
        holding: set[NodeName],
        sent_at: float | None,
    ) -> list[str]:
        """Somebody took work from a node that is not there: was it time to?"""
        found: list[str] = []
        if actor is None or actor[0] not in self._nodes:
            return found
        now, breaker = self._now(), self._rules.breaker_seconds * DRIFT
        me = self._nodes[actor[0]]
        for name in sorted(change.lost - {actor[0]}):
            node = self._nodes.get(name)
            if name in self.truth.presences:
                found.append(f"S3 {actor[0]} gave up what {name} holds, which is there")
            if node is None or node.absent_since is None:
                continue
            found += invariants.check_forgotten(self.truth, name)
            # What the session before had asked for, and came late, was judged by that one.
            is_of_this = sent_at is None or sent_at >= me.session_since
            is_unseen = node.absent_since < me.session_since
            if is_of_this and is_unseen and now < me.session_since + breaker:
                found.append(f"S13 {actor[0]} declared {name} dead, which it never saw alive")
            if now < node.absent_since + breaker and self._is_mass(
                holding, now if sent_at is None else sent_at, actor[0], name
            ):
                found.append(f"S13 {actor[0]} declared {name} dead when most nodes were missing")
        return found

    def _is_mass(self, holding: set[NodeName], now: float, actor: NodeName, lost: NodeName) -> bool:
        """Whether most nodes are missing, and have been for long enough that all can know."""
        if self.is_lagging(actor):
            return False
        missing, expected = 0, 0
        recently = max(
            now - self._rules.breaker_seconds * DRIFT, self._nodes[actor].session_since
        )  # what was taken from a node since counts too: leases lapse one by one
        for name, node in self._nodes.items():
            if node.absent_since is None:
                expected += 1
            elif name in holding or node.absent_since > recently:
                expected += 1
                missing += now - node.absent_since > VIEW_SECONDS or name == lost
        return missing >= 2 and 2 * missing > expected

    def _check_new_names(self, events: Sequence[Event]) -> list[str]:
        """A name is given to what has passed a probe. (Jobs of a simulation all have one.)"""
        found = []
        for event in events:
            if event.deleted or not event.kv.key.startswith(keys.STATUS):
                continue
            node, namespace, name = keys.parts(event.kv.key, keys.STATUS)
            job = keys.job_key(namespace, name)
            told = self.truth.statuses.get(job, {}).get(NodeName(node), {})
            for slot, status in told.items():
                if not status.healthy:
                    continue
                pod = PodId(
                    node=NodeName(node),
                    namespace=job.namespace,
                    job=job.name,
                    slot=slot,
                    uid=status.uid,
                    version=status.version,
                    generation=status.generation,
                )
                version = self.truth.versions.get((job, status.version))
                is_probed = version and any(c.healthcheck for c in version.job.containers)
                if is_probed and not self._pod(pod).has_passed:
                    found.append(f"S9 {pod.name} is said to be healthy and never passed a probe")
        return found

    # The hosts ----------------------------------------------------------------------------------

    def _pod(self, pod: PodId) -> PodHistory:
        history = self._pods.get(pod)
        if history is None:
            history = self._pods[pod] = PodHistory()
        return history

    def pod_event(self, pod: PodId, what: str, address: str = "") -> None:
        """What happened to a pod on its host; the words are those of `SimHost.on_event`."""
        node = self._nodes.get(pod.node)
        state = node.pods.get(pod) if node else None
        match what:
            case "asked to start":
                self._pod(pod).asked_at = self._now()
                self._pod(pod).lapsed_seconds = self._lapsed_seconds(node)
            case "first start":
                self._pod(pod).started_at = self._now()
                self._check_start(pod, state)
            case "asked to stop":
                self._pod(pod).asked_to_stop = state
            case "stop" | "kill":
                # Nobody can call back what was asked for while it was not to run there.
                if state is SlotState.RUNNING and self._pod(pod).asked_to_stop is state:
                    self._violate(f"S7 {pod.name} was stopped though it is to run there")
                elif what == "stop":
                    self._check_drained(pod, state, address)
            case "restart":
                if not self._pod(pod).has_failed:
                    self._violate(f"S7 {pod.name} was restarted though nothing was wrong with it")
                self._pod(pod).is_restarting = True
            case "start" if self._pod(pod).is_restarting:
                # Not before: the next daemon finds it as it was, if this one dies in the midst.
                self._pod(pod).is_restarting = self._pod(pod).has_failed = False
            case "create":
                self._check_patience(pod)
            case "passed":
                self._pod(pod).has_passed = True
            case "failed":
                self._pod(pod).has_failed = True
            case "port taken" if state is SlotState.RUNNING:
                # Of a pod that is not to run there any more it is a call that hung till now.
                self._violate(f"S16 {pod.name} finds its host port taken by another pod of ours")

    def _check_patience(self, pod: PodId) -> None:
        times = self._pod(pod).created
        if len(times) == CREATES_MAX and self._now() - times[0] < CREATES_SECONDS:
            self._violate(f"L7 {pod.name} was made {CREATES_MAX} times in {CREATES_SECONDS:g} s")
        times.append(self._now())

    def _lapsed_seconds(self, node: NodeHistory | None) -> float:
        """How long a node has had no lease, and its daemon must know by its own clock."""
        if node is None or node.absent_since is None:
            return 0.0
        ttl = self._rules.lease_ttl_seconds
        unknown = ttl if node.is_revoked else 0.0
        return self._now() - node.absent_since - unknown - ttl * (1 - DRIFT)

    def _check_start(self, pod: PodId, state: SlotState | None) -> None:
        if (lapsed := self._pod(pod).lapsed_seconds) > 0:
            self._violate(f"S4 {pod.name} was started {lapsed:.1f} s after its node's lease lapsed")
        if state is SlotState.RUNNING:
            return
        until, asked = self._pod(pod).to_run_until, self._pod(pod).asked_at
        ago = (self._now() if asked is None else asked) - (until or 0.0)
        limit = self._rules.lease_ttl_seconds + LAG_SECONDS
        if until is None:
            self._violate(f"S4 {pod.name} was started though it was never to run there")
        elif ago > limit and not self.is_lagging(pod.node):
            self._violate(f"S4 {pod.name} was started {ago:.1f} s after it was to run there")

    def _check_drained(self, pod: PodId, state: SlotState | None, address: str) -> None:
        """Only what is stopping was served; what is not assigned has lost its names already."""
        since = self._pod(pod).stopping_since
        if state is not SlotState.STOPPING or since is None or not address:
            return
        named = any(
            f'"{address}"'.encode() in kv.value for kv in self.truth.names.get(pod.key, {}).values()
        )
        if named and self._now() - since < WITHDRAW_SECONDS:
            self._violate(f"S9 {pod.name} was stopped while {address} was still named")


def _job_of(key: bytes) -> JobKey | None:
    try:
        namespace, name = keys.parts(key, keys.JOBS)
    except ValueError:
        return None
    return keys.job_key(namespace, name)
