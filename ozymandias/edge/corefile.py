"""CoreDNS's configuration: our zone from etcd, the rest from the resolvers named. Pure.

The cache outlives the store: a name that was asked for once is answered for an hour more when etcd
does not answer (`serve_stale`), and asked for anew first while it does (`verify`). Values are
checked, because a blank or a brace in one of them would be another directive.
"""

import re
from dataclasses import dataclass

TTL_SECONDS_MAX = 5  # of answers in our zone: what a client may believe after a change
FORWARD_TTL_SECONDS_MAX = 30
STALE = "1h"
VERIFY = "500ms"  # how long etcd may take before the last known answer is given
BUFFER_BYTES = 1232  # of UDP answers, so that none is ever sent in pieces
ROOT = "/skydns"
WORD = re.compile(r"[^\s{}\"#]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Corefile:
    endpoints: tuple[str, ...]  # of etcd: http://10.0.0.1:2379
    domain: str = "ozy.internal"
    listen: tuple[str, ...] = ()  # addresses; none: all of the host's
    port: int = 53
    ca_file: str = ""  # of etcd; cert and key are ours, as a client
    cert_file: str = ""
    key_file: str = ""
    forwarders: tuple[str, ...] = ("/etc/resolv.conf",)  # none: other names are refused
    metrics_listen: str = ""  # host:port; "" means none, likewise below
    health_listen: str = ""
    ready_listen: str = ""


def render(corefile: Corefile) -> str:
    """The file. ValueError for what can't be said in one."""
    _check(corefile)
    bind = [f"bind {' '.join(corefile.listen)}"] if corefile.listen else []
    metrics = [f"prometheus {corefile.metrics_listen}"] if corefile.metrics_listen else []
    every = [*bind, f"bufsize {BUFFER_BYTES}", "errors", *metrics]
    own = [
        *every,
        *([f"health {corefile.health_listen}"] if corefile.health_listen else []),
        *([f"ready {corefile.ready_listen}"] if corefile.ready_listen else []),
        f"cache {TTL_SECONDS_MAX} {{",
        f"    serve_stale {STALE} verify {VERIFY}",
        "}",
        "loadbalance",
        "etcd {",
        f"    path {ROOT}",
        f"    endpoint {' '.join(corefile.endpoints)}",
        *_tls(corefile),
        "}",
    ]
    blocks = [_block(f"{corefile.domain}:{corefile.port}", own)]
    if corefile.forwarders:
        forward = f"forward . {' '.join(corefile.forwarders)}"
        blocks.append(
            _block(f".:{corefile.port}", [*every, f"cache {FORWARD_TTL_SECONDS_MAX}", forward])
        )
    return "# Written by Ozymandias; it is written anew when the cluster's settings change.\n" + (
        "\n".join(blocks)
    )


def _tls(corefile: Corefile) -> list[str]:
    if corefile.cert_file:
        files = (corefile.cert_file, corefile.key_file, corefile.ca_file)
        return [f"    tls {' '.join(filter(None, files))}"]
    return [f"    tls {corefile.ca_file}"] if corefile.ca_file else []


def _block(zone: str, lines: list[str]) -> str:
    return "\n".join([f"{zone} {{", *(f"    {line}" for line in lines), "}", ""])


def _check(corefile: Corefile) -> None:
    if not corefile.endpoints:
        raise ValueError("no etcd endpoint")
    if bool(corefile.cert_file) != bool(corefile.key_file):
        raise ValueError("a certificate needs its key, and a key its certificate")
    if not 0 < corefile.port < 65536:
        raise ValueError(f"{corefile.port} is not a port")
    texts = [*corefile.endpoints, *corefile.listen, *corefile.forwarders, corefile.domain]
    texts += [corefile.ca_file, corefile.cert_file, corefile.key_file]
    texts += [corefile.metrics_listen, corefile.health_listen, corefile.ready_listen]
    for text in filter(None, texts):
        if not WORD.fullmatch(text):
            raise ValueError(f"{text!r} can't be written in a Corefile")
