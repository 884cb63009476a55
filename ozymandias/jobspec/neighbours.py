"""Other jobs that a job is near to or apart from, and the nodes that a burst goes to.

cache                  of the same namespace         platform/cache       of another one
{job: cache, weight: 10}                             preferred only

Which namespace is meant by a bare name is known when the whole file is read: until then they are a
draft, each still with its place in the file.
"""

from dataclasses import dataclass
from typing import Any

from ozymandias.jobspec.checks import (
    DNS_LABEL,
    Integer,
    Schema,
    Text,
    expected,
    text_of,
)
from ozymandias.jobspec.loader import Mapping, Node, Scalar
from ozymandias.jobspec.records import Field, Given, ListOf, Marked, Record
from ozymandias.jobspec.report import Place, Wrong, quoted
from ozymandias.model.job import (
    Burst,
    JobKey,
    JobName,
    Namespace,
    Neighbour,
    PlacementRules,
)
from ozymandias.model.record import replace

NEIGHBOURS_MAX = 50
NODES_MAX = 100
AFTER_MAX = 10_000
WEIGHT_MAX = 100

NOTHING_ASKED = PlacementRules()
OWN = Namespace("")  # the namespace of the job that names it

JOB = Text(
    "the name of another job such as cache, or of one in another namespace such as platform/cache",
    rf"({DNS_LABEL}/)?{DNS_LABEL}",
    127,
)
NODE = Text("a node's name", r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62})?", 63)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Where a job may be, before its own name is known."""

    rules: PlacementRules = NOTHING_ASKED
    near: tuple[Marked[Neighbour], ...] = ()
    apart: tuple[Marked[Neighbour], ...] = ()

    @property
    def is_require_only(self) -> bool:
        return not (self.near or self.apart) and self.rules == PlacementRules(
            require=self.rules.require
        )

    def settled(self, key: JobKey) -> PlacementRules:
        """The rules of the job of this name; what can't be meant is complained about."""
        near, apart = _of(self.near, key), _of(self.apart, key)
        for word, named in (("near", near), ("apart from", apart)):
            seen: set[JobKey] = set()
            for marked in named:
                job = marked.value.job
                if job == key:
                    hint = '"max_per_node" keeps its own instances apart'
                    marked.wrong(f"{key} can't be {word} itself", hint * (word != "near"))
                elif job in seen:
                    marked.wrong(f"{job} is named twice")
                seen.add(job)
        close = {marked.value.job for marked in near}
        for marked in apart:
            if marked.value.job in close - {key}:
                both = f"both near {marked.value.job} and apart from it"
                marked.wrong(f"{key} can't be {both}", "keep one of the two")
        return replace(
            self.rules,
            near=tuple(marked.value for marked in near),
            apart=tuple(marked.value for marked in apart),
        )


def _of(named: tuple[Marked[Neighbour], ...], key: JobKey) -> list[Marked[Neighbour]]:
    return [
        replace(
            marked,
            value=replace(
                marked.value,
                job=marked.value.job._replace(
                    namespace=marked.value.job.namespace or key.namespace,
                ),
            ),
        )
        for marked in named
    ]


def job_key(text: str) -> JobKey:
    namespace, slash, name = text.rpartition("/")
    return JobKey(Namespace(namespace) if slash else OWN, JobName(name))


@dataclass(frozen=True, slots=True)
class Other:
    """Another job by its name, or as a mapping with a weight."""

    expects: str = JOB.expects

    def read(self, node: Node, at: Place) -> Neighbour | Any:
        if isinstance(node, Mapping):
            return _RECORD.read(node, at)
        text = text_of(node, self.expects, length_max=JOB.length_max)
        if " " in text.strip():
            hint = f"for a preference: {{job: {text.split()[0]}, weight: 10}}"
            raise expected(self.expects, node, hint)
        return Neighbour(job=job_key(JOB.read(node, at)))

    def schema(self) -> Schema:
        return {"anyOf": [JOB.schema(), _RECORD.schema()]}


_RECORD = Record(
    title="another job",
    fields=(
        Field(name="job", check=JOB, is_required=True, doc="Its name."),
        Field(
            name="weight",
            check=Integer(1, WEIGHT_MAX),
            default="required, not preferred",
            doc="How much it counts beside other preferences.",
        ),
    ),
    build=lambda given: Neighbour(job=job_key(given.values["job"]), weight=given.get("weight", 0)),
    meant={
        "namespace": 'write it before the name: "platform/cache"',
        "required": "without a weight it is required",
        "preferred": "with a weight it is preferred",
    },
)

NEIGHBOURS = ListOf(
    item=Other(),
    title="a list of other jobs such as [cache, platform/db]",
    items_max=NEIGHBOURS_MAX,
    accepts_single=True,
)


@dataclass(frozen=True, slots=True)
class After:
    """How many instances stay at home: at least one."""

    expects: str = Integer(1, AFTER_MAX).expects

    def read(self, node: Node, at: Place) -> int:
        if isinstance(node, Scalar) and node.value == 0 and node.value is not False:
            hint = "for nodes that take all of them, write `require` on a label"
            raise Wrong("after 0 instances there is no home to burst from", hint)
        return Integer(1, AFTER_MAX).read(node, at)

    def schema(self) -> Schema:
        return Integer(1, AFTER_MAX).schema()


def _build_burst(given: Given) -> Burst | None:
    nodes: tuple[Marked[str], ...] = given.values["nodes"]
    names = [marked.value for marked in nodes]
    for index, marked in enumerate(nodes):
        if marked.value in names[:index]:
            marked.wrong(f"{quoted(marked.value)} is named twice")
    if not names:
        given.wrong("nodes", "a burst has to go to some node")
    return Burst(after=given.values["after"], nodes=tuple(names))


BURST = Record(
    title="a burst",
    fields=(
        Field(
            name="after",
            check=After(),
            is_required=True,
            doc="How many live instances stay at home before others go to the burst's nodes.",
        ),
        Field(
            name="nodes",
            aliases=("node",),
            check=ListOf(
                item=NODE, title="a list of node names", items_max=NODES_MAX, accepts_single=True
            ),
            is_required=True,
            doc="The nodes that take the rest.",
        ),
    ),
    build=_build_burst,
    meant={"above": 'did you mean "after"?', "to": 'did you mean "node"?'},
)
