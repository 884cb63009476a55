"""`ozy cluster init` and `ozy cluster join`: a host becomes the first of a cluster, or one more.

Both write down first what the host is to be; then keys and certificates, then its part in the
store, then files and services in their order, each waited for. The same command again finds the
record and goes on with it; on a host that is ready it says so and changes nothing.
"""

import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from ozymandias import __version__
from ozymandias.cluster.doctor import listeners
from ozymandias.cluster.founding import (
    authority,
    credentials,
    files,
    join_token,
    knocking,
    record,
    registry,
    running,
    services,
    work,
)
from ozymandias.cluster.founding.authority import Pair
from ozymandias.cluster.founding.join_token import JoinToken
from ozymandias.cluster.founding.messages import JoinRequest
from ozymandias.cluster.founding.record import ClusterSettings, HostRecord, Places
from ozymandias.cluster.founding.work import Say, Work
from ozymandias.problems import HOST_CLUSTER, Problem, ProblemError

Outcome = Literal["done", "was ready"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was asked for on this host; "" leaves it to us."""

    name: str = ""
    address: str = ""
    ingress_listen: str = "0.0.0.0:80"
    podman_socket: str = ""
    machine_id: str = ""
    memory: str = ""
    disk: str = ""
    bin_dirs: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Founded:
    outcome: Outcome
    record: HostRecord
    reason: str = ""
    token: JoinToken | None = None


# Founding -----------------------------------------------------------------------------------------


def draft(wish: Wish, cluster: ClusterSettings, places: Places) -> HostRecord:
    """The record that `init` would begin with, checked."""
    made = HostRecord(
        cluster=cluster,
        name=wish.name or work.usual_name(),
        address=wish.address or work.usual_address(),
        ingress_listen=wish.ingress_listen,
        podman_socket=wish.podman_socket,
        machine_id=wish.machine_id,
        memory=wish.memory,
        disk=wish.disk,
        bin_dirs=wish.bin_dirs,
        labels=wish.labels,
    )
    problem = record.check(made.name, made.address)
    if problem is not None:
        raise ProblemError(problem)
    if not made.machine_id:
        record.read_machine_id()
    return replace(
        made,
        endpoints=(made.client_url,),
        initial_members=(f"{made.name}={made.peer_url}",),
    )


def new_cluster_id() -> str:
    return secrets.token_hex(6)


def init(wish: Wish, cluster: ClusterSettings, places: Places, say: Say) -> Founded:
    there = record.load(places)
    if there is not None and there.stage == "ready":
        return Founded(outcome="was ready", record=there)
    if there is not None and there.initial_state != "new":
        raise ProblemError(_other_work("join"))
    begun = there or draft(wish, cluster, places)
    at = Work(record=begun, places=places, runner=running.runner(places), say=say)
    services.require_programs(begun)
    if there is None:
        require_free(at)
    else:
        say("resumed", f"founding of cluster {begun.cluster.id}, which was interrupted")
    at.save()
    at.make_group()
    _credentials(at)
    at.write_files()
    at.start("etcd")
    for what in work.run(_write_records(at)):
        say("etcd", f"{what}: written")
    at.start()
    token = create_token(at, uses=join_token.USES_DEFAULT)
    at.save(stage="ready")
    return Founded(outcome="done", record=at.record, token=token)


def _credentials(at: Work) -> None:
    now = time.time()
    if credentials.ensure_authority(at.places, at.record, now):
        at.say("made", f"the cluster's authority, {at.places.authority_cert}")
    if credentials.ensure_token(at.places):
        at.say("made", f"an API token, {at.places.token}")
    if any(held.is_due(now) for held in credentials.held(at.places, now)):
        sign_here(at, now)


def sign_here(at: Work, now: float) -> bool:
    """New certificates by the authority's key on this host; False where it is not."""
    pair = credentials.read_authority(at.places)
    if pair is None:
        return False
    asked = credentials.requests(at.places, at.record.name)
    name, address = at.record.name, at.record.address
    certs = credentials.sign_all(pair, asked, name=name, address=address, now=now)
    credentials.write_certificates(at.places, certs)
    at.say("made", f"this host's certificates, {at.places.certificates}")
    return True


async def _write_records(at: Work) -> list[str]:
    async with at.store() as store:
        return await registry.found(store, at.record.cluster, at.known(time.time()))


# Joining ------------------------------------------------------------------------------------------


def join(address: str, token: JoinToken, wish: Wish, places: Places, say: Say) -> Founded:
    there = record.load(places)
    now = time.time()
    is_good = not any(held.problem for held in credentials.held(places, now))
    if there is not None and there.stage == "ready" and is_good:
        return Founded(outcome="was ready", record=there)
    if there is not None and there.stage == "begun" and there.initial_state == "new":
        raise ProblemError(_other_work("init"))
    runner = running.runner(places)
    if there is None or not is_good:
        at = _knock(address, token, there, wish, places, say)
    else:
        say("resumed", f"joining cluster {there.cluster.id}, which was interrupted")
        at = Work(record=there, places=places, runner=runner, say=say)
    reason = at.enlist()
    say("etcd", f"{at.record.name} {reason}")
    changed = at.write_files()
    if there is not None and not is_good:  # certificates are read at a start
        changed |= {places.toml, places.corefile, places.settings / "flanneld.env"}
    at.restart_readers(changed)
    at.start()
    work.run(_tell(at))
    at.save(stage="ready")
    return Founded(outcome="done", record=at.record, reason=reason)


def _knock(
    address: str,
    token: JoinToken,
    there: HostRecord | None,
    wish: Wish,
    places: Places,
    say: Say,
) -> Work:
    """Ask to be let in; the record is kept once we were, before anything is started."""
    unknown = ClusterSettings(id="")
    begun = there or replace(draft(wish, unknown, places), initial_state="existing")
    at = Work(record=begun, places=places, runner=running.runner(places), say=say)
    if there is None:
        require_free(at)
    ca = knocking.fetch_authority(address, token)
    at.make_group()
    answer = knocking.ask(
        address,
        ca,
        "/join",
        JoinRequest(
            name=begun.name,
            address=begun.address,
            machine_id=at.machine_id,
            requests=credentials.requests(places, begun.name),
            version=__version__,
            token=f"{token.id}:{token.secret}",
        ),
        places,
    )
    services.require_programs(replace(begun, cluster=answer.cluster, part="client"))
    credentials.write_authority(places, Pair(cert=answer.authority, key=answer.authority_key))
    credentials.write_certificates(places, answer.certificates)
    credentials.write_token_hashes(places, answer.token_hashes)
    say("joined", f"cluster {answer.cluster.id} as {begun.name}, with certificates of its own")
    part = there.part if there else "client"
    at.save(cluster=answer.cluster, endpoints=answer.endpoints, part=part)
    return at


async def _tell(at: Work) -> None:
    async with at.store() as store:
        await registry.update_host(store, at.known(time.time()))


# Both ---------------------------------------------------------------------------------------------


def create_token(
    at: Work, *, uses: int, seconds: float = join_token.SECONDS_DEFAULT, by: str = ""
) -> JoinToken:
    async def create() -> JoinToken:
        async with at.store() as store:
            fingerprint = authority.fingerprint(at.places.authority_cert.read_text())
            made, _ = await registry.create_token(
                store, fingerprint, time.time(), seconds=seconds, uses=uses, by=by
            )
            return made

    return work.run(create())


def require_free(at: Work) -> None:
    """Nobody else must have the ports; said before anything is written."""
    address = at.record.address
    if listeners.bind_problem(address, 0) is not None:
        raise ProblemError(
            HOST_CLUSTER(
                f"This host does not have the address {address}.",
                hint="--address takes one of `ip -brief address` that other hosts reach.",
            )
        )
    wanted = {
        record.ETCD_PORT: "etcd",
        record.ETCD_PEER_PORT: "etcd's members",
        record.API_PORT: "the API",
        record.DOOR_PORT: "the door for joining hosts",
    }
    for port, what in wanted.items():
        if listeners.bind_problem(address, port) is not None:
            raise ProblemError(_port_taken(address, port, what))
    if listeners.bind_problem(address, files.DNS_PORT, socket.SOCK_DGRAM) is not None:
        raise ProblemError(_port_taken(address, files.DNS_PORT, "DNS", "udp"))


def _port_taken(address: str, port: int, what: str, protocol: str = "tcp") -> Problem:
    return HOST_CLUSTER(
        f"Port {port} of {address}, which {what} needs, is taken by"
        f" {listeners.holder(port, protocol, address)}.",
        hint=f"Stop that program, or let it listen elsewhere; `ss -lntup 'sport = :{port}'`.",
    )


def _other_work(what: str) -> Problem:
    return HOST_CLUSTER(
        f"`ozy cluster {what}` was begun on this host and interrupted.",
        hint="Run that again to go on with it, or `ozy node leave --force` to give it up.",
    )


# What would be done -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    what: str
    detail: str = ""  # a file's text, or why


def plan(at: Work, *, founds: bool) -> Iterator[Planned]:
    """Every file and command, in order, for `--dry-run`."""
    places, begun = at.places, at.record
    yield Planned(what=f"write {places.record}", detail="what this host is")
    if places.is_whole_host:
        yield Planned(what="groupadd --system --force ozymandias", detail="who reads settings")
    if founds:
        yield Planned(what=f"make {places.authority_key} and {places.authority_cert}")
        yield Planned(what=f"make {places.token} and its hash, {places.token_hashes}")
    else:
        yield Planned(what="ask to be let in, over TLS", detail="with the token")
        yield Planned(what=f"write {places.authority_cert}, {places.token_hashes}")
    for use in credentials.USES:
        yield Planned(what=f"make {places.key(use)} and {places.cert(use)}", detail="kept if good")
    for text in files.texts(begun, places):
        yield Planned(what=f"write {text.path} (mode {text.mode:04o})", detail=text.text)
    if places.has_systemd:
        yield Planned(what="systemctl daemon-reload")
    for service in at.services():
        if places.has_systemd:
            yield Planned(what=f"systemctl enable --now {service.unit}")
        else:
            yield Planned(what=f"supervise {service.name}", detail=" ".join(service.command))
        yield Planned(what=f"wait for {service.name}")
        if service.name == "etcd" and founds:
            yield Planned(what="put the cluster's settings, this host, flannel's network into etcd")
        elif service.name == "etcd":
            yield Planned(what="add this host to etcd's members, as a learner; give it its vote")
