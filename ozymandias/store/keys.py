"""The key layout in etcd, in one table. Nothing else spells a key.

    format                          schema version and the cluster's id
    nodes/<node>            LEASE 1 presence
    load/<node>             LEASE 1 what it really does: load, use, pressure
    ledger/<node>                   what may be promised on a node, and what is
    jobs/<namespace>/<job>          head: uid, version, wanted count
    versions/<namespace>/<job>/<n>  the specification, immutable
    assignments/<node>/<namespace>/<job>
    status/<node>/<namespace>/<job> LEASE 2
    claims/ingress/<host>/<path>    owner of an ingress host and path
    events/<node>/<n mod 500>       ring of what happened
    decisions/<node>/<n mod 100>    ring of what its decisions were made on, compressed
    settings/cluster                how the cluster was founded: networks, names, numbers
    settings/scheduling             priority classes, node pools, freeze windows, rebalancing
    settings/hosts/<host>           a real host: address, machine, part in the store, certificate
    settings/join-tokens/<id>       hash, expiry and uses left of a join token

Names of CoreDNS live beside, under /skydns, with labels in reverse (LEASE 2).
"""

from functools import lru_cache

from ozymandias.model.job import JobKey, JobName, Namespace
from ozymandias.model.node import NodeName

ROOT = b"/ozymandias/v1/"
FORMAT = ROOT + b"format"
NODES = ROOT + b"nodes/"
LOADS = ROOT + b"load/"
LEDGERS = ROOT + b"ledger/"
JOBS = ROOT + b"jobs/"
VERSIONS = ROOT + b"versions/"
ASSIGNMENTS = ROOT + b"assignments/"
STATUS = ROOT + b"status/"
CLAIMS = ROOT + b"claims/ingress/"
EVENTS = ROOT + b"events/"
DECISIONS = ROOT + b"decisions/"
SETTINGS = ROOT + b"settings/"
CLUSTER = SETTINGS + b"cluster"
SCHEDULING = SETTINGS + b"scheduling"
HOSTS = SETTINGS + b"hosts/"
JOIN_TOKENS = SETTINGS + b"join-tokens/"
SKYDNS = b"/skydns/"
FLANNEL = b"/coreos.com/network/"  # flanneld's own keys

# Keys name the same nodes and jobs again and again: a million of them share a few thousand names.
NODES_KEPT = 2**14
JOBS_KEPT = 2**16
EVENTS_PER_NODE = 500
DECISIONS_PER_NODE = 100


@lru_cache(NODES_KEPT)
def node(name: NodeName) -> bytes:
    return NODES + name.encode()


def load(name: NodeName) -> bytes:
    return LOADS + name.encode()


@lru_cache(NODES_KEPT)
def ledger(name: NodeName) -> bytes:
    return LEDGERS + name.encode()


def job(key: JobKey) -> bytes:
    return JOBS + of_job(key)


def versions(key: JobKey) -> bytes:
    return VERSIONS + of_job(key) + b"/"


def version(key: JobKey, number: int) -> bytes:
    # Ten digits, so that keys sort as numbers do.
    return versions(key) + f"{number:010d}".encode()


@lru_cache(NODES_KEPT)
def assignments(name: NodeName) -> bytes:
    return ASSIGNMENTS + name.encode() + b"/"


def of_job(key: JobKey) -> bytes:
    """What comes after the node in the keys of assignments and statuses."""
    return f"{key.namespace}/{key.name}".encode()


def assignment(name: NodeName, key: JobKey) -> bytes:
    return assignments(name) + of_job(key)


def statuses(name: NodeName) -> bytes:
    return STATUS + name.encode() + b"/"


def status(name: NodeName, key: JobKey) -> bytes:
    return statuses(name) + of_job(key)


def claim(host_and_path: str) -> bytes:
    return CLAIMS + host_and_path.encode()


def events(name: NodeName) -> bytes:
    return EVENTS + name.encode() + b"/"


def event(name: NodeName, number: int) -> bytes:
    return events(name) + f"{number % EVENTS_PER_NODE:03d}".encode()


def decisions(name: NodeName) -> bytes:
    return DECISIONS + name.encode() + b"/"


def decision(name: NodeName, number: int) -> bytes:
    return decisions(name) + f"{number % DECISIONS_PER_NODE:02d}".encode()


def host(name: str) -> bytes:
    return HOSTS + name.encode()


def join_token(id_: str) -> bytes:
    return JOIN_TOKENS + id_.encode()


def dns(name: str) -> bytes:
    """``0.web.default.ozy.internal`` -> ``/skydns/internal/ozy/default/web/0``."""
    return SKYDNS + "/".join(reversed(name.lower().rstrip(".").split("."))).encode()


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all keys with this prefix."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b"\0"


def parts(key: bytes, prefix: bytes) -> tuple[str, ...]:
    """The path segments of a key below a prefix. UnicodeDecodeError is a ValueError."""
    return tuple(key[len(prefix) :].decode().split("/"))


def node_and_job(key: bytes, prefix: bytes) -> tuple[NodeName, JobKey]:
    """Whose assignment or status it is; ValueError for a key of another kind."""
    node, _, job = key[len(prefix) :].partition(b"/")
    return node_named(node), job_named(job)


@lru_cache(NODES_KEPT)
def node_named(name: bytes) -> NodeName:
    return NodeName(name.decode())


@lru_cache(JOBS_KEPT)
def job_named(path: bytes) -> JobKey:
    namespace, name = path.decode().split("/")
    return job_key(namespace, name)


def job_key(namespace: str, name: str) -> JobKey:
    return JobKey(Namespace(namespace), JobName(name))
