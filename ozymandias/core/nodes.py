"""What an operator sets on a node: cordon, labels, the beginning and the end of a drain.

Each is one plan that rewrites the node's ledger and nothing else; asked for again it changes
nothing. What follows from it (instances that move, system jobs that come or go) is decided
afterwards by whichever peer comes first: `core/drain.py`, `core/system.py`.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from ozymandias import problems
from ozymandias.model.node import Drain, Ledger, Node, NodeName
from ozymandias.model.plan import NodeChange, Plan
from ozymandias.model.record import replace
from ozymandias.model.snapshot import Snapshot
from ozymandias.problems import Problem

LABELS_MAX = 100  # that an operator sets on one node


def plan_cordon(snapshot: Snapshot, name: NodeName) -> Plan | Problem:
    """It takes no new work; what is there stays."""
    node = found(snapshot, name)
    if isinstance(node, Problem):
        return node
    if node.ledger.is_cordoned:
        return Plan(reason=f"{name} is cordoned already")
    change = replace(_as_it_is(node), is_cordoned=True)
    return Plan(reason=f"{name} is cordoned: it takes no new work", nodes=(change,))


def plan_uncordon(snapshot: Snapshot, name: NodeName) -> Plan | Problem:
    node = found(snapshot, name)
    if isinstance(node, Problem):
        return node
    if node.ledger.drain:
        return problems.NODE_DRAINING(
            f"{name} is being drained, and takes no work until that is ended.",
            hint=f"`ozy node undrain {name}` ends it.",
            node=name,
        )
    if not node.ledger.is_cordoned:
        return Plan(reason=f"{name} is not cordoned")
    change = replace(_as_it_is(node), is_cordoned=False)
    return Plan(reason=f"{name} takes work again", nodes=(change,))


def plan_begin_drain(snapshot: Snapshot, name: NodeName, drain: Drain) -> Plan | Problem:
    """The node is to become empty; a drain under way takes on the new deadline."""
    node = found(snapshot, name)
    if isinstance(node, Problem):
        return node
    before = node.ledger.drain
    if before and before.deadline == drain.deadline:
        return Plan(reason=f"{name} is being drained already")
    wanted = replace(drain, since=before.since) if before else drain
    change = replace(_as_it_is(node), drain=wanted)
    return Plan(reason=f"{name} is drained: its instances move elsewhere", nodes=(change,))


def plan_end_drain(snapshot: Snapshot, name: NodeName) -> Plan | Problem:
    """What has not left stays, and the node takes work again unless it is cordoned beside."""
    node = found(snapshot, name)
    if isinstance(node, Problem):
        return node
    if node.ledger.drain is None:
        return Plan(reason=f"{name} is not being drained")
    change = replace(_as_it_is(node), drain=None)
    return Plan(reason=f"the drain of {name} is over", nodes=(change,))


def plan_label(
    snapshot: Snapshot, name: NodeName, put: Mapping[str, str], remove: Iterable[str]
) -> Plan | Problem:
    """The operator's labels win over those of the node's settings, and outlive its restarts."""
    node = found(snapshot, name)
    if isinstance(node, Problem):
        return node
    ledger = node.ledger
    labels = relabelled(ledger, put, remove)
    if len(labels) > LABELS_MAX:
        return problems.INVALID_REQUEST(f"{name} would have more than {LABELS_MAX} labels set.")
    if labels == ledger.set_labels:
        return Plan(reason=f"{name} has these labels already")
    change = replace(_as_it_is(node), set_labels=labels)
    after = replace(ledger, set_labels=labels).all_labels
    words = ", ".join(f"{k}={v}" for k, v in sorted(after.items())) or "none"
    return Plan(reason=f"labels of {name}: {words}", nodes=(change,))


def relabelled(ledger: Ledger, put: Mapping[str, str], remove: Iterable[str]) -> dict[str, str]:
    """A label of the settings is hidden by an empty one of the operator's; any other just goes."""
    labels = {**ledger.set_labels, **put}
    for name in remove:
        labels.pop(name, None)
        if name in ledger.labels:
            labels[name] = ""
    return labels


def found(snapshot: Snapshot, name: NodeName) -> Node | Problem:
    """The node, or the problem that there is none of this name."""
    node = snapshot.nodes.get(name)
    if node is not None:
        return node
    close = get_close_matches(name, snapshot.nodes, n=3)
    return problems.NODE_NOT_FOUND(
        f"There is no node {name!r}.",
        hint=f"Did you mean {' or '.join(close)}?" if close else "`ozy nodes` lists them.",
        node=name,
    )


def _as_it_is(node: Node) -> NodeChange:
    ledger = node.ledger
    return NodeChange(
        node=node.name,
        is_cordoned=ledger.is_cordoned,
        drain=ledger.drain,
        set_labels=dict(ledger.set_labels),
    )
