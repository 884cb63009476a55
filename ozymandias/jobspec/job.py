"""The job itself: its table of fields, the rules of its ingress, and the Job made of them."""

import re
from collections.abc import Mapping as Table
from dataclasses import dataclass
from typing import Any, NamedTuple

from ozymandias.jobspec.autoscale import AUTOSCALE
from ozymandias.jobspec.checks import (
    DNS_LABEL,
    NAME,
    PORT,
    WRONG,
    Choice,
    Flag,
    Integer,
    Schema,
    expected,
    text_of,
)
from ozymandias.jobspec.container import CONTAINER, LABELS, Draft
from ozymandias.jobspec.loader import Node, Scalar
from ozymandias.jobspec.neighbours import Draft as PlacementDraft
from ozymandias.jobspec.parts import UrlPath
from ozymandias.jobspec.placement import PLACEMENT, Priority
from ozymandias.jobspec.records import Field, Given, ListOf, MapOf, Marked, Record
from ozymandias.jobspec.report import Place, Wrong, quoted
from ozymandias.jobspec.rules import check_across
from ozymandias.jobspec.words import OTHER_JOB_WORDS, UNBUILT_JOB_FIELDS
from ozymandias.model.job import (
    DEFAULT_NAMESPACE,
    Autoscale,
    IngressRule,
    Job,
    JobKey,
    JobKind,
    JobName,
    Namespace,
    NetworkMode,
    OnPartition,
)
from ozymandias.model.record import replace
from ozymandias.model.settings import PRIORITY_CLASSES
from ozymandias.model.units import counted

INSTANCES_MAX = 10_000
PERCENT_PATTERN = "(100|[0-9]{1,2})%"
CONTAINERS_MAX = 50
RULES_MAX = 100
HOST_LENGTH_MAX = 253
HOST_PATTERN = rf"{DNS_LABEL}(\.{DNS_LABEL})*"


class Least(NamedTuple):
    """How many are to be healthy: so many, or that part of the wanted ones."""

    number: int = 0
    percent: int = 0


@dataclass(frozen=True, slots=True)
class Available:
    """A number of instances, or a percentage."""

    @property
    def expects(self) -> str:
        return f"{Integer(0, INSTANCES_MAX).expects}, or a percentage such as 50%"

    def read(self, node: Node, at: Place) -> Least:
        if isinstance(node, Scalar) and isinstance(node.value, str):
            text = node.text
            if re.fullmatch(PERCENT_PATTERN, text):
                return Least(percent=int(text[:-1]))
            if not text.isdigit():
                hint = "a whole number from 0% to 100%" if "%" in text else ""
                raise expected(self.expects, node, hint)
        elif not isinstance(node, Scalar) or type(node.value) is not int:
            raise expected(self.expects, node)
        return Least(number=Integer(0, INSTANCES_MAX).read(node, at))

    def schema(self) -> Schema:
        percent = {"type": "string", "pattern": f"^{PERCENT_PATTERN}$"}
        return {"anyOf": [Integer(0, INSTANCES_MAX).schema(), percent]}


@dataclass(frozen=True, slots=True)
class IngressHost:
    expects: str = "a host name such as shop.example"

    def read(self, node: Node, at: Place) -> str:
        host = text_of(node, self.expects, length_max=HOST_LENGTH_MAX).lower()
        if re.fullmatch(HOST_PATTERN, host):
            return host
        hint = ""
        if "://" in host or "/" in host:
            hint = "only the name: the path has a field of its own"
        elif ":" in host:
            hint = "without a port: the ingress listens on one port for all hosts"
        elif "*" in host:
            hint = "wildcards are not built yet: list each host"
        raise expected(self.expects, node, hint)

    def schema(self) -> Schema:
        pattern = f"^{HOST_PATTERN}$".replace("a-z", "A-Za-z")
        return {"type": "string", "pattern": pattern, "maxLength": HOST_LENGTH_MAX}


@dataclass(frozen=True, slots=True)
class IngressPath:
    """A prefix of whole path parts, in one spelling: /api, never /api/ or //api."""

    expects: str = UrlPath().expects

    def read(self, node: Node, at: Place) -> str:
        text = UrlPath().read(node, at)
        if "?" in text:
            raise Wrong(f"path {quoted(text)} must not contain a query")
        parts = [part for part in text.split("/") if part]
        if "." in parts or ".." in parts:
            raise Wrong(f'path {quoted(text)} must not contain "." or ".." as a part')
        return "/" + "/".join(parts)

    def schema(self) -> Schema:
        return UrlPath().schema()


INGRESS = Record(
    title="an ingress rule",
    fields=(
        Field(
            name="host",
            check=IngressHost(),
            default="the job's own host names",
            doc="The host name in the request.",
        ),
        Field(
            name="path",
            check=IngressPath(),
            default="/",
            doc="The beginning of the request's path; the longest match wins.",
        ),
        Field(
            name="port",
            check=PORT,
            default="the job's first tcp port",
            doc='The port of the pod\'s address that gets the request: 80 of "80:3000".',
        ),
    ),
    # Port 0 stands for "the first one" until the containers are known.
    build=lambda given: IngressRule(
        host=given.get("host", ""), path=given.get("path", "/"), port=given.get("port", 0)
    ),
    unbuilt={"tcp": "traffic by port alone"},
    meant={"hostname": 'did you mean "host"?', "hosts": "write one rule for each host"},
)


def _build_job(given: Given) -> Any:
    """The Job, or WRONG after the checks that compare containers have had their say."""
    containers: dict[str, Marked[Any]] = given.get("containers", {})
    drafts = {name: marked.value for name, marked in containers.items()}
    rules: tuple[Marked[IngressRule], ...] | None = given.get("ingress")
    known = given.entries.get("containers")
    ingress = check_across(drafts, rules, names=_names(known.value) if known else frozenset())
    _check_kind(given)
    _check_network(given, drafts)
    namespace = Namespace(given.get("namespace", DEFAULT_NAMESPACE))
    key = JobKey(namespace, JobName(given.get("name", "")))
    placement = given.get("placement", PlacementDraft()).settled(key)
    if given.at.report.count:
        return WRONG
    kind = given.get("type", JobKind.SERVICE)
    least: Least = given.get("min_available", Least())
    return Job(
        name=JobName(given.values["name"]),
        namespace=namespace,
        instances=0 if kind is JobKind.SYSTEM else _instances(given),
        kind=kind,
        network=given.get("network", NetworkMode.POD),
        priority=given.get("priority", 0),
        may_preempt=given.get("preempt", True),
        is_protected=given.get("protected", False),
        on_partition=given.get("on_partition", OnPartition.KEEP),
        min_available=least.number,
        min_available_percent=least.percent,
        placement=placement,
        containers=tuple(replace(draft.container, name=name) for name, draft in drafts.items()),
        ingress=ingress,
        labels=given.get("labels", ()),
        autoscale=given.get("autoscale"),
    )


def _instances(given: Given) -> int:
    """As many as the file says; a pool begins with the least that it has."""
    rules: Autoscale | None = given.get("autoscale")
    found: int = given.get("numInstances", 1 if rules is None else rules.min)
    return found


def _check_kind(given: Given) -> None:
    """What the type of a job and its numbers have to do with each other."""
    placement: PlacementDraft = given.get("placement", PlacementDraft())
    if given.get("type") is JobKind.SYSTEM:
        if given.has("numInstances"):
            given.wrong("numInstances", "a system job runs once on every node", "leave it out")
        if not placement.is_require_only:
            given.wrong(
                "placement",
                "a system job runs once on every matching node",
                'only "require" makes sense for it',
            )
        if given.has("autoscale"):
            given.wrong("autoscale", "a system job runs once on every node", "leave it out")
        return
    _check_pool(given)
    wanted, least = _instances(given), given.get("min_available", Least()).number
    if least > wanted and not given.is_wrong("numInstances") and not given.has("autoscale"):
        given.wrong("min_available", f"{least} of {counted(wanted, 'instance')} can't be available")


def _check_pool(given: Given) -> None:
    """A pool begins within its bounds, and its least is what can be counted on."""
    rules: Autoscale | None = given.get("autoscale")
    if rules is None:
        return
    begins, least = _instances(given), given.get("min_available", Least()).number
    if not rules.min <= begins <= rules.max:
        within = f"{rules.min} to {rules.max}, the bounds of autoscale"
        given.wrong("numInstances", f"{begins} is not within {within}")
    elif least > rules.min:
        given.wrong("min_available", f"the pool may have only {rules.min} (autoscale.min)")


def _check_network(given: Given, drafts: Table[str, Draft]) -> None:
    """On the machine's own network a port is what the process listens on, and nothing else."""
    if given.get("network") is not NetworkMode.HOST:
        return
    if given.get("type") is not JobKind.SYSTEM:
        given.wrong("network", "only system jobs may have the host's network", "type: system")
    for draft in drafts.values():
        for marked in draft.ports:
            port = marked.value
            if port.pod != port.container or port.host not in (None, port.container):
                marked.wrong(
                    f"on the host's network port {port.container} can't be reached as another one",
                    f'write "{port.container}"',
                )


def _names(node: Any) -> frozenset[str]:
    """The containers' names, those with mistakes included: they do exist."""
    return frozenset(getattr(node, "entries", ()))


JOB = Record(
    title="a job",
    fields=(
        Field(
            name="name",
            check=NAME,
            is_required=True,
            doc="The job's name, unique in its namespace; part of its host names.",
        ),
        Field(
            name="namespace",
            check=NAME,
            default=DEFAULT_NAMESPACE,
            doc="Keeps jobs of different people or purposes apart.",
        ),
        Field(
            name="numInstances",
            aliases=("instances",),
            check=Integer(0, INSTANCES_MAX),
            default="1",
            doc="How many pods of this job run.",
        ),
        Field(
            name="type",
            check=Choice(
                {"service": JobKind.SERVICE, "system": JobKind.SYSTEM},
                unbuilt={"batch": "work that ends"},
            ),
            default="service",
            doc="What kind of work it is; service: so many instances, wherever there is room;"
            " system: one on every node that `placement` allows, present and future.",
        ),
        Field(
            name="priority",
            check=Priority(),
            default="0",
            doc="Of jobs that wait for room the highest comes first, and what fits nowhere else"
            " displaces lower ones. Classes: "
            + ", ".join(f"{name} ({number})" for name, number in PRIORITY_CLASSES.items())
            + ", and those of the cluster's settings.",
        ),
        Field(
            name="preempt",
            check=Choice({"lower": True, "never": False}),
            default="lower",
            doc="lower: what fits nowhere else displaces instances of lower priority; never: it"
            " waits for room instead.",
        ),
        Field(
            name="protected",
            check=Flag(),
            default="false",
            doc="Nobody displaces its instances, and no pressure on a host makes them leave. For"
            " administrators: a token with the right deploy can't submit it, nor change the job.",
        ),
        Field(
            name="min_available",
            check=Available(),
            default="0",
            doc="Drains and changes never leave fewer healthy instances than this; a percentage is"
            " of the wanted ones, rounded up.",
        ),
        Field(
            name="placement",
            check=PLACEMENT,
            doc="Which nodes may run it, and which it likes best.",
        ),
        Field(
            name="network",
            check=Choice({"pod": NetworkMode.POD, "host": NetworkMode.HOST}),
            default="pod",
            doc="pod: an address of its own; host: the machine's, for system jobs, on nodes that"
            " allow it.",
        ),
        Field(
            name="containers",
            check=MapOf(
                item=CONTAINER,
                key=NAME,
                title="a mapping of names to containers",
                items_max=CONTAINERS_MAX,
            ),
            is_required=True,
            doc="The containers of one pod, by name. They share one network: each reaches the"
            " others on localhost.",
        ),
        Field(
            name="ingress",
            check=ListOf(item=INGRESS, title="a list of ingress rules", items_max=RULES_MAX),
            default="the job's own host names, to its first port",
            doc="HTTP traffic from outside. An empty list: none.",
        ),
        Field(
            name="on_partition",
            check=Choice({"keep": OnPartition.KEEP, "stop": OnPartition.STOP}),
            default="keep",
            doc="What becomes of running pods while their node can't reach the cluster. stop: they"
            " end when its lease does, so that a replacement never runs beside them.",
        ),
        Field(
            name="autoscale",
            check=AUTOSCALE,
            doc="A pool: more instances while something is pending, fewer when nothing is.",
        ),
        Field(name="labels", check=LABELS, doc="Labels of the job."),
    ),
    build=_build_job,
    unbuilt=UNBUILT_JOB_FIELDS,
    meant=OTHER_JOB_WORDS,
    is_strict=False,
)
