"""`ozy cluster`: clusters of real hosts, founded, joined, looked after; as root, on the host.

The work is done by `ozymandias/cluster/founding/`; here is what people see of it.
"""

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ozymandias.cli import context as contexts
from ozymandias.cli.options import output_option, settings
from ozymandias.cli.render import BOLD, GREEN, YELLOW, clean, paint, print_table, show

if TYPE_CHECKING:
    from ozymandias.cluster.founding.found import Founded, Planned, Wish
    from ozymandias.cluster.founding.record import Places
    from ozymandias.cluster.founding.work import Say, Work

DRY = ("would", YELLOW)


def root_option(function: Any) -> Any:
    return click.option(
        "--root",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("/"),
        help="Keep all files below this directory instead of /; systemd is not asked then.",
    )(function)


def host_options(function: Any) -> Any:
    """What a host may be told about itself when it becomes one of a cluster."""
    given = (
        click.option("--name", default="", help="Of this host in the cluster (default: its own)."),
        click.option("--address", default="", help="Where other hosts reach this one."),
        click.option(
            "--ingress",
            default="0.0.0.0:80",
            show_default=True,
            metavar="HOST:PORT",
            help="Where the ingress listens.",
        ),
        click.option("--memory", default="", help="What may be allocated (default: all of it)."),
        click.option("--disk", default="", help="What may be allocated (default: all of it)."),
        click.option(
            "--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label of this host."
        ),
        click.option(
            "--bin",
            "bins",
            multiple=True,
            type=click.Path(file_okay=False),
            help="Where etcd, flanneld, coredns are looked for first.",
        ),
        click.option("--podman-socket", default="", hidden=True),
        click.option("--machine-id", default="", hidden=True),
        click.option("--dry-run", is_flag=True, help="Print every file and command; do nothing."),
        root_option,
    )
    for option in reversed(given):
        function = option(function)
    return function


@click.group()
def cluster() -> None:
    """Make several hosts one cluster, and look after it.

    \b
    Examples:
      ozy cluster init --address 192.0.2.11
      ozy cluster join 192.0.2.11 TOKEN
      ozy cluster status
    """


@cluster.command("init")
@host_options
@click.option(
    "--network",
    type=click.Choice(["flannel", "bridge"]),
    default="flannel",
    show_default=True,
    help="What connects pods; bridge: only those of one host.",
)
@click.option("--pod-network", default="10.78.0.0/16", show_default=True, help="Of all pods.")
@click.option(
    "--pod-subnet-bits",
    type=click.IntRange(20, 28),
    default=24,
    show_default=True,
    help="Prefix length of each host's part of it: 24 are some 250 pods.",
)
@click.option(
    "--backend",
    type=click.Choice(["vxlan", "host-gw"]),
    default="vxlan",
    show_default=True,
    help="How flannel carries packets; host-gw needs one network segment.",
)
@click.option(
    "--dns",
    type=click.Choice(["coredns", "builtin"]),
    default="coredns",
    show_default=True,
    help="Who answers for names.",
)
@click.option("--domain", default="ozy.internal", show_default=True, help="Of names in DNS.")
@click.option("--ingress-domain", default="localhost", show_default=True, help="Of web names.")
@click.option(
    "--members",
    type=click.Choice(["1", "3", "5"]),
    default="3",
    show_default=True,
    help="How many hosts hold the store, at most.",
)
@click.option("--lease-ttl", type=click.IntRange(6, 60), default=15, hidden=True)
@output_option
def init(dry_run: bool, root: Path, **given: Any) -> int:
    """Found a cluster on this host: the first of it.

    Makes an authority and certificates, an etcd member, the network's and DNS's configuration and
    units for all of it, starts them in order, waits for each, and prints how others join. Run
    again, it goes on where it was interrupted; on a host that is ready it changes nothing.

    \b
    Examples:
      ozy cluster init --dry-run
      ozy cluster init --address 192.0.2.11 --ingress-domain apps.example
    """
    from ozymandias.cluster.founding import found, record

    places = record.Places(root=root.absolute())
    settings_ = record.ClusterSettings(
        id=found.new_cluster_id(),
        network=given["network"],
        pod_network=given["pod_network"],
        pod_subnet_bits=given["pod_subnet_bits"],
        backend=given["backend"],
        dns=given["dns"],
        domain=given["domain"],
        ingress_domain=given["ingress_domain"],
        members_max=int(given["members"]),
        lease_ttl_seconds=given["lease_ttl"],
    )
    wish = wish_of(given)
    if dry_run:
        return _dry_run(found.draft(wish, settings_, places), places, founds=True)
    record.require_root(places)
    started = time.monotonic()
    done = found.init(wish, settings_, places, sayer())
    _remember(done, places)
    show(_founded(done, started), _draw_founded)
    return 0


@cluster.command("join")
@click.argument("door", metavar="ADDRESS")
@click.argument("token")
@host_options
@output_option
def join(door: str, token: str, dry_run: bool, root: Path, **given: Any) -> int:
    """Make this host one of the cluster that ADDRESS belongs to.

    TOKEN is what `ozy cluster token create` printed there. It proves the cluster to this host,
    too: the secret in it is said to nobody else. Run again, it goes on where it was interrupted.

    \b
    Example:
      ozy cluster join 192.0.2.11 ozyj-5c1d…
    """
    from ozymandias.cluster.founding import found, join_token, record
    from ozymandias.problems import Problem, ProblemError

    places = record.Places(root=root.absolute())
    parsed = join_token.parse(token)
    if isinstance(parsed, Problem):
        raise ProblemError(parsed)
    wish = wish_of(given)
    if dry_run:
        unknown = record.ClusterSettings(id="(the cluster's)")
        return _dry_run(found.draft(wish, unknown, places), places, founds=False)
    record.require_root(places)
    started = time.monotonic()
    done = found.join(door, parsed, wish, places, sayer())
    _remember(done, places)
    show(_founded(done, started), _draw_founded)
    return 0


# Tokens -----------------------------------------------------------------------------------------


@cluster.group("token")
def token() -> None:
    """Join tokens: what lets a host in, for a while and a number of times.

    \b
    Example:
      ozy cluster token create --uses 2 --hours 24
    """


@token.command("create")
@click.option(
    "--uses", type=click.IntRange(1, 64), default=1, show_default=True, help="For how many hosts."
)
@click.option(
    "--hours",
    type=click.FloatRange(0, 168, min_open=True),
    default=1.0,
    show_default=True,
    help="How long it is good.",
)
@root_option
@output_option
def create(uses: int, hours: float, root: Path) -> None:
    """Print a token with which hosts may join; only its hash is kept.

    \b
    Example:
      ozy cluster token create --uses 2 --hours 24
    """
    from ozymandias.cluster.founding import found

    at = here(root)
    made = found.create_token(at, uses=uses, seconds=hours * 3600, by=_who())
    document = {
        "id": made.id,
        "token": str(made),
        "uses": uses,
        "hours": hours,
        "command": f"ozy cluster join {at.record.address} {made}",
    }
    show(document, lambda d: print(d["command"]))


@token.command("list")
@root_option
@output_option
def list_(root: Path) -> None:
    """List join tokens, with what is left of them.

    \b
    Example:
      ozy cluster token list
    """
    from ozymandias.cluster.founding import registry, work

    at = here(root)

    async def read() -> Any:
        async with at.store() as store:
            return await registry.tokens(store)

    now = time.time()
    rows = [
        {
            "id": found.id,
            "uses_left": found.uses_left,
            "seconds_left": max(0, round(found.expires - now)),
            "by": found.created_by,
            "state": "expired"
            if found.expires < now
            else "used up"
            if not found.uses_left
            else "good",
        }
        for found in work.run(read())
    ]
    show(rows, _draw_tokens)


@token.command("revoke")
@click.argument("id_", metavar="ID")
@root_option
@output_option
def revoke(id_: str, root: Path) -> None:
    """Make a join token worthless at once.

    \b
    Example:
      ozy cluster token revoke 5c1d22aa
    """
    from ozymandias.cluster.founding import registry, work
    from ozymandias.problems import RESOURCE_NOT_FOUND, ProblemError

    at = here(root)

    async def remove() -> bool:
        async with at.store() as store:
            return await registry.revoke_token(store, id_)

    if not work.run(remove()):
        raise ProblemError(
            RESOURCE_NOT_FOUND(
                f"There is no join token {id_!r}.", hint="`ozy cluster token list` lists them."
            )
        )
    show({"id": id_, "revoked": True}, lambda _: print(f"Revoked {id_}."))


# ------------------------------------------------------------------------------------------------


def wish_of(given: dict[str, Any]) -> "Wish":
    from ozymandias.cluster.founding.found import Wish

    labels = dict(label.split("=", 1) for label in given["labels"] if "=" in label)
    plain = all(re.fullmatch(r"[\w./-]{1,63}", k) and v.isprintable() for k, v in labels.items())
    if len(labels) != len(given["labels"]) or not plain:
        raise click.BadParameter("--label takes KEY=VALUE, each key once, of letters, digits, ._/-")
    return Wish(
        name=given["name"],
        address=given["address"],
        ingress_listen=given["ingress"],
        podman_socket=given["podman_socket"],
        machine_id=given["machine_id"],
        memory=given["memory"],
        disk=given["disk"],
        bin_dirs=tuple(given["bins"]),
        labels=labels,
    )


def here(root: Path) -> "Work":
    """This host as it is; a problem where it is in no cluster."""
    from ozymandias.cluster.founding import record, work
    from ozymandias.problems import HOST_CLUSTER, ProblemError

    places = record.Places(root=root.absolute())
    record.require_root(places)
    at = work.of(places, sayer())
    if at is None:
        raise ProblemError(
            HOST_CLUSTER(
                "This host is in no cluster.",
                hint="`ozy cluster init` founds one, `ozy cluster join` joins one.",
            )
        )
    return at


def sayer() -> "Say":
    """Tells each step as it is done, from whichever thread."""
    is_table = settings().output == "table"

    def say(outcome: str, what: str) -> None:
        if is_table:
            print(f"{paint(f'{outcome:<9}', GREEN)} {clean(what)}", file=sys.stderr, flush=True)

    return say


def _who() -> str:
    from ozymandias.cli.client import _who as who

    return who()


def _dry_run(begun: Any, places: "Places", *, founds: bool) -> int:
    from ozymandias.cluster.founding import found, running
    from ozymandias.cluster.founding.work import Work

    at = Work(record=begun, places=places, runner=running.runner(places), say=sayer())
    planned = list(found.plan(at, founds=founds))
    document = [{"what": step.what, "detail": step.detail} for step in planned]
    show(document, lambda _: _draw_plan(planned))
    return 0


def _draw_plan(planned: "list[Planned]") -> None:
    for step in planned:
        print(f"{paint('would', DRY[1])} {step.what}")
        for line in step.detail.splitlines():
            print(f"      {line}")


def _remember(done: "Founded", places: "Places") -> None:
    """A context for root on this host: the Unix socket, and the API with the founder's token."""
    if not places.is_whole_host:
        return
    cluster_id = done.record.cluster.id
    token_ = places.token.read_text().strip() if places.token.exists() else ""
    contexts.put(
        contexts.Context(
            name=f"cluster-{cluster_id}",
            endpoints=(f"unix://{places.api_socket}", done.record.api_url),
            token=token_,
            ca=places.authority_cert.read_text(),
        )
    )


def _founded(done: "Founded", started: float) -> dict[str, Any]:
    return {
        "cluster": done.record.cluster.id,
        "host": done.record.name,
        "address": done.record.address,
        "part": done.record.part,
        "was_ready": done.outcome == "was ready",
        "seconds": round(time.monotonic() - started, 2),
        "reason": done.reason,
        "join_token": str(done.token) if done.token else None,
    }


def _draw_founded(document: dict[str, Any]) -> None:
    name, cluster_id = document["host"], paint(document["cluster"], BOLD)
    if document["was_ready"]:
        print(f"{name} is a host of cluster {cluster_id} already; nothing was changed.")
        print("`ozy cluster status` shows it; `ozy node leave` takes it out.")
        return
    print(f"{name} is a host of cluster {cluster_id}, after {document['seconds']:.1f} s.")
    if document["join_token"]:
        print("Others join within the hour, one host per token (`ozy cluster token create`):")
        print(f"  ozy cluster join {document['address']} {document['join_token']}")
    print("Next: ozy doctor; ozy nodes")


def _draw_tokens(rows: list[dict[str, Any]]) -> None:
    columns = ("id", "state", "uses_left", "seconds_left", "by")
    print_table(
        [c.upper() for c in columns], [[row[c] for c in columns] for row in rows], empty="None."
    )
