"""DNS records as CoreDNS's etcd plugin keeps them: a key of reversed labels and a small JSON value.

    0.web.default.ozy.internal  ->  /skydns/internal/ozy/default/web/0
                                    {"host": "10.1.2.3", "ttl": 5}

What comes from the store is checked here: a key or value that makes no sense is no record. Values
and keys are written by the store (`store.names`, `store.keys`).
"""

import ipaddress
import json

from ozymandias.model.routing import DnsRecord

PREFIX = b"/skydns/"
TTL_SECONDS_DEFAULT = 5
TTL_SECONDS_MAX = 3600
LABEL_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
LABEL_LENGTH_MAX = 63
NAME_LENGTH_MAX = 253


def name_of(key: bytes) -> str:
    """The name that a key stands for; ValueError if it stands for none."""
    if not key.startswith(PREFIX):
        raise ValueError(f"{key!r} is not a DNS key")
    labels = key[len(PREFIX) :].decode("ascii").split("/")
    return checked_name(".".join(reversed(labels)))


def checked_name(name: str) -> str:
    """Lower case, without the final dot; ValueError if it is not a host or service name."""
    lower = name.lower().removesuffix(".")
    if len(lower) > NAME_LENGTH_MAX:
        raise ValueError(f"{name!r} is too long for a name")
    for label in lower.split("."):
        if not label or len(label) > LABEL_LENGTH_MAX or not LABEL_CHARACTERS.issuperset(label):
            raise ValueError(f"{name!r} is not a name")
    return lower


def record_of(key: bytes, value: bytes) -> DnsRecord:
    """What is stored under a key; ValueError if it is not an address record."""
    name = name_of(key)
    data = json.loads(value)
    if not isinstance(data, dict):
        raise ValueError(f"{name}: the value is not an object")
    port, ttl = data.get("port", 0), data.get("ttl", TTL_SECONDS_DEFAULT)
    if type(port) is not int or not 0 <= port <= 65535:
        raise ValueError(f"{name}: {port!r} is not a port")
    if type(ttl) is not int or not 0 <= ttl <= TTL_SECONDS_MAX:
        raise ValueError(f"{name}: {ttl!r} is not a time to live")
    address = str(ipaddress.ip_address(str(data.get("host"))))
    return DnsRecord(name=name, address=address, port=port, ttl_seconds=ttl)
