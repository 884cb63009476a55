"""What all hosts share in etcd: the cluster's settings, its hosts, its join tokens, flannel's own.

Every write compares what it relies on; a lost race is looked at again, a bounded number of times.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from ozymandias.cluster.founding import join_token
from ozymandias.cluster.founding.join_token import JoinRecord, JoinToken
from ozymandias.cluster.founding.record import ClusterSettings, KnownHost
from ozymandias.ports import KV, Ambiguous, Compare, Delete, Op, Put, Store, Unavailable
from ozymandias.problems import HOST_CLUSTER, JOIN_REFUSED, Problem, ProblemError
from ozymandias.store import codec, keys

ATTEMPTS_MAX = 8
FLANNEL_CONFIG = keys.FLANNEL + b"config"
FLANNEL_SUBNETS = keys.FLANNEL + b"subnets/"

T = TypeVar("T")


def encode(value: object) -> bytes:
    return msgspec.json.encode(value)


def _decode(kind: type[T], kv: KV | None) -> T | None:
    if kv is None:
        return None
    try:
        return msgspec.json.decode(kv.value, type=kind)
    except (msgspec.DecodeError, ValueError) as error:
        raise ProblemError(
            HOST_CLUSTER(f"{kv.key.decode(errors='replace')} in etcd can't be read: {error}.")
        ) from error


def _was(key: bytes, kv: KV | None) -> Compare:
    return Compare(key, "mod", "=", kv.mod_revision if kv else 0)


# Founding -----------------------------------------------------------------------------------------


async def found(store: Store, settings: ClusterSettings, host: KnownHost) -> list[str]:
    """Write what is not there yet; what was written. A store of another cluster is a problem."""
    there = _decode(ClusterSettings, await store.get(keys.CLUSTER))
    if there is not None and there.id != settings.id:
        raise ProblemError(HOST_CLUSTER(f"The store belongs to cluster {there.id}."))
    format_ = codec.Format(version=codec.FORMAT_VERSION, cluster=settings.id)
    wanted: list[tuple[bytes, bytes, str]] = [
        (keys.FORMAT, codec.encode(format_), "the cluster's id"),
        (keys.CLUSTER, encode(settings), "the cluster's settings"),
        (keys.host(host.name), encode(host), "this host"),
    ]
    if settings.network == "flannel":
        wanted.append((FLANNEL_CONFIG, flannel_config(settings), "flannel's configuration"))
    written = []
    for key, value, what in wanted:
        result = await store.txn([Compare(key, "version", "=", 0)], [Put(key, value)])
        written += [what] if result.succeeded else []
    return written


def flannel_config(settings: ClusterSettings) -> bytes:
    return encode(
        {
            "Network": settings.pod_network,
            "SubnetLen": settings.pod_subnet_bits,
            "Backend": {"Type": settings.backend},
        }
    )


async def settings_of(store: Store) -> ClusterSettings | None:
    return _decode(ClusterSettings, await store.get(keys.CLUSTER))


# Hosts --------------------------------------------------------------------------------------------


async def hosts(store: Store) -> tuple[KnownHost, ...]:
    """In the order of joining."""
    listing = await store.range(keys.HOSTS)
    found_ = [host for kv in listing.kvs if (host := _decode(KnownHost, kv)) is not None]
    return tuple(sorted(found_, key=lambda host: (host.joined, host.name)))


async def update_host(store: Store, fresh: KnownHost) -> bool:
    """Whether it was to be changed. A host that was removed meanwhile stays removed."""
    kv = await store.get(keys.host(fresh.name))
    known = _decode(KnownHost, kv)
    if known is None or replace(fresh, joined=known.joined) == known:
        return False
    key = keys.host(fresh.name)
    put = Put(key, encode(replace(fresh, joined=known.joined)))
    try:
        return (await store.txn([_was(key, kv)], [put])).succeeded
    except Ambiguous:
        return False  # it is looked at again


async def remove_host(store: Store, name: str) -> None:
    """Its record, and the presence that its daemon left; the ledger stays while it holds work."""
    await store.txn([], [Delete(keys.host(name))])


# Joining ------------------------------------------------------------------------------------------


async def admit(store: Store, id_: str, secret: str, host: KnownHost) -> KnownHost | Problem:
    """Take one use of the token and write the host down, in one transaction.

    A host that is known with this very machine is let in again: it has lost its files or was
    interrupted. Name and address belong to one machine each.
    """
    token_key, host_key = keys.join_token(id_), keys.host(host.name)
    for _ in range(ATTEMPTS_MAX):
        token_kv, listing = await store.get(token_key), await store.range(keys.HOSTS)
        now = host.joined
        left = join_token.spend(_decode(JoinRecord, token_kv), secret, host.machine_id, now)
        if isinstance(left, Problem):
            return left
        known = [(kv, k) for kv in listing.kvs if (k := _decode(KnownHost, kv)) is not None]
        refused = _taken(host, [k for _, k in known])
        if refused is not None:
            return refused
        kv, there = next(((kv, k) for kv, k in known if k.name == host.name), (None, None))
        entered = replace(host, joined=there.joined if there else host.joined)
        then: list[Op] = [Put(token_key, encode(left)), Put(host_key, encode(entered))]
        try:
            result = await store.txn([_was(token_key, token_kv), _was(host_key, kv)], then)
        except Ambiguous:
            continue  # if it was applied, this machine is known now and nothing more is taken
        if result.succeeded:
            return entered
    raise Unavailable("too many hosts join at once")


def _taken(host: KnownHost, known: Sequence[KnownHost]) -> Problem | None:
    for other in known:
        if other.machine_id == host.machine_id and other.name != host.name:
            return JOIN_REFUSED(
                f"This machine is in the cluster already, as {other.name}.",
                hint="`ozy node leave` there first; machines that were copied from one image need"
                " a new /etc/machine-id (`systemd-machine-id-setup`).",
            )
        if other.machine_id == host.machine_id:
            continue
        if other.name == host.name:
            return JOIN_REFUSED(
                f"A host named {host.name} is in the cluster already, at {other.address}.",
                hint=f"--name gives this one another name; `ozy cluster remove {host.name}` on a"
                " host of the cluster forgets one that is gone for good.",
            )
        if other.address == host.address:
            return JOIN_REFUSED(
                f"{host.address} is the address of {other.name}.",
                hint="--address names the one of this host.",
            )
    return None


# Join tokens --------------------------------------------------------------------------------------


async def create_token(
    store: Store, fingerprint: str, now: float, *, seconds: float, uses: int, by: str
) -> tuple[JoinToken, JoinRecord]:
    token, record = join_token.make(fingerprint, now, seconds=seconds, uses=uses, by=by)
    key = keys.join_token(token.id)
    await store.txn([Compare(key, "version", "=", 0)], [Put(key, encode(record))])
    return token, record


async def tokens(store: Store) -> tuple[JoinRecord, ...]:
    listing = await store.range(keys.JOIN_TOKENS)
    return tuple(t for kv in listing.kvs if (t := _decode(JoinRecord, kv)) is not None)


async def revoke_token(store: Store, id_: str) -> bool:
    """Whether there was one."""
    key = keys.join_token(id_)
    result = await store.txn([Compare(key, "version", ">", 0)], [Delete(key)])
    return result.succeeded
