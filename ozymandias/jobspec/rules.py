"""What must hold between the containers of one job: ports, order of start, volumes, ingress.

The containers of a pod share one network namespace, so a port belongs to one of them only. Checks
look at what is right by itself; what is wrong was complained about before and is left out here.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import chain

from ozymandias.jobspec.container import Draft
from ozymandias.jobspec.records import Marked
from ozymandias.jobspec.report import did_you_mean, quoted
from ozymandias.model.job import Dependency, IngressRule, Port, Protocol, Volume, VolumeKind
from ozymandias.model.units import format_size

Rules = tuple[Marked[IngressRule], ...]


def check_across(
    drafts: Mapping[str, Draft], rules: Rules | None, *, names: frozenset[str]
) -> tuple[IngressRule, ...] | None:
    """Notes what is wrong between containers; returns the ingress rules with their ports."""
    _check_ports(drafts)
    _check_dependencies(drafts, names)
    _check_shared_volumes(drafts)
    if rules is None:
        return None
    is_certain = len(drafts) == len(names) and not any(d.has_wrong_ports for d in drafts.values())
    return tuple(_with_ports(drafts, rules, is_certain=is_certain))


def _check_ports(drafts: Mapping[str, Draft]) -> None:
    pod: dict[tuple[int, Protocol], str] = {}  # -> the container that has it
    host: dict[tuple[int, Protocol], str] = {}
    listening: dict[tuple[int, Protocol], str] = {}
    for name, marked in _ports(drafts):
        port = marked.value
        if (port.pod, port.protocol) in pod:
            taker = pod[port.pod, port.protocol]
            marked.wrong(
                f"port {port.pod}/{port.protocol} of the pod is already taken by container"
                f" {quoted(taker)}",
                f'choose another one on the left, such as "{_free(pod, port)}:{port.container}"',
            )
        elif (owner := listening.get((port.container, port.protocol), name)) != name:
            marked.wrong(
                f"container {quoted(owner)} already listens on {port.container}/{port.protocol},"
                " and the containers of a pod share one network",
                "let one of the two listen on another port",
            )
        elif port.host is not None and (port.host, port.protocol) in host:
            taker = host[port.host, port.protocol]
            marked.wrong(
                f"port {port.host}/{port.protocol} of the host is already taken by container"
                f" {quoted(taker)}"
            )
        pod.setdefault((port.pod, port.protocol), name)
        listening.setdefault((port.container, port.protocol), name)
        if port.host is not None:
            host.setdefault((port.host, port.protocol), name)


def _ports(drafts: Mapping[str, Draft]) -> Iterator[tuple[str, Marked[Port]]]:
    for name, draft in drafts.items():
        for marked in draft.ports:
            yield name, marked


def _free(taken: Mapping[tuple[int, Protocol], str], port: Port) -> int:
    """A port near the one that was asked for."""
    candidates = chain(range(port.pod + 1, 65536), range(port.pod, 0, -1))
    return next((n for n in candidates if (n, port.protocol) not in taken), port.pod)


def _check_dependencies(drafts: Mapping[str, Draft], names: frozenset[str]) -> None:
    edges: dict[str, list[Marked[Dependency]]] = {name: [] for name in drafts}
    for name, draft in drafts.items():
        for marked in draft.depends_on:
            target = marked.value.container
            if target == name:
                marked.wrong(f"container {quoted(name)} depends on itself")
            elif target not in names:
                others = sorted(names - {name})
                hint = did_you_mean(target, others) or (
                    f"the others: {', '.join(others[:10])}" if others else ""
                )
                marked.wrong(f"there is no container {quoted(target)} in this job", hint)
            elif target in drafts:
                edges[name].append(marked)
    _check_cycles(edges)


def _check_cycles(edges: Mapping[str, list[Marked[Dependency]]]) -> None:
    """Depth first, in the file's order; each edge that closes a cycle is shown with the cycle."""
    done: set[str] = set()
    for start in edges:
        path: list[str] = []
        stack = [(start, iter(edges[start]))] if start not in done else []
        while stack:
            name, rest = stack[-1]
            if len(path) < len(stack):
                path.append(name)
            marked = next(rest, None)
            if marked is None:
                done.add(name)
                stack.pop()
                path.pop()
                continue
            target = marked.value.container
            if target in path:
                cycle = [*path[path.index(target) :], target]
                marked.wrong(f"the containers wait for each other: {' -> '.join(cycle)}")
            elif target not in done:
                stack.append((target, iter(edges[target])))


def _check_shared_volumes(drafts: Mapping[str, Draft]) -> None:
    """One shared volume may be seen by several containers; it has one size."""
    first: dict[str, tuple[str, Volume]] = {}
    for name, draft in drafts.items():
        for marked in draft.volumes:
            volume = marked.value
            if volume.kind is not VolumeKind.SHARED:
                continue
            owner, other = first.setdefault(volume.name, (name, volume))
            if owner != name and other.space_bytes != volume.space_bytes:
                marked.wrong(
                    f"the shared volume {quoted(volume.name)} has {format_size(other.space_bytes)}"
                    f" in container {quoted(owner)} and {format_size(volume.space_bytes)} here",
                    'write the same "space" in both, or give one of them another "name"',
                )


def _with_ports(
    drafts: Mapping[str, Draft], rules: Rules, *, is_certain: bool
) -> Iterator[IngressRule]:
    """Each rule with its port filled in. Uncertain: some ports were wrong, so none is missed."""
    ports = [m.value.pod for _, m in _ports(drafts) if m.value.protocol is Protocol.TCP]
    seen: set[tuple[str, str]] = set()
    for marked in rules:
        rule = marked.value
        shown_host = quoted(rule.host) if rule.host else "the job's own host names"
        if (rule.host, rule.path) in seen:
            marked.wrong(f"there is already a rule for {shown_host} and path {quoted(rule.path)}")
        seen.add((rule.host, rule.path))
        if is_certain and not ports:
            marked.wrong("the job has no tcp port to send requests to", 'give a container "ports"')
        elif is_certain and rule.port and rule.port not in ports:
            numbers = ", ".join(str(p) for p in ports[:10])
            marked.wrong(f"port {rule.port} is not a tcp port of this job", f"its ports: {numbers}")
        yield dataclasses.replace(rule, port=rule.port or (ports[0] if ports else 0))
