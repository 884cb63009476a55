"""`ozy cluster status, renew, backup, restore, halt, resume, remove` and `ozy node leave`.

What is done to a cluster of hosts after it was founded; `cli/founding.py` has the founding.
"""

from pathlib import Path
from typing import Any

import click

from ozymandias.cli.founding import cluster, here, host_options, root_option, sayer, wish_of
from ozymandias.cli.options import output_option
from ozymandias.cli.render import BOLD, RED, YELLOW, clean, paint, print_table, show

FILE = click.Path(path_type=Path, dir_okay=False)


@cluster.command("status")
@root_option
@output_option
def status(root: Path) -> int:
    """Show who holds the store, all hosts, and how long their certificates are good.

    The exit code is 1 when the store can't be read.

    \b
    Example:
      ozy cluster status
    """
    from ozymandias.cluster.founding.status import status as read

    document = read(here(root))
    show(document, _draw_status)
    return 1 if document["problem"] else 0


def _draw_status(document: dict[str, Any]) -> None:
    print(
        f"Cluster {paint(document['cluster'], BOLD)}, seen from {document['host']}"
        f" ({document['stage']}); network {document['network']}, DNS {document['dns']}"
    )
    for cert in document["certificates"]:
        if cert["problem"]:
            print(paint(f"The {cert['use']} certificate is no good: {cert['problem']}", RED))
    for service in document["services"]:
        if not service["running"]:
            print(paint(f"{service['name']} does not run here", YELLOW))
    if document["problem"]:
        print(paint(f"The store can't be read: {clean(document['problem'])}", RED))
        return
    print_table(
        ["MEMBER", "ROLE", "VERSION", "SIZE", "ADDRESS", "PROBLEM"],
        [
            [
                *(m["name"], m["role"], m["version"], _size(m["db_size_bytes"])),
                *(m["address"], clean(m["problem"])),
            ]
            for m in document["members"]
        ],
        empty="No members.",
    )
    print()
    print_table(
        ["HOST", "ALIVE", "PART", "ADDRESS", "CERTIFICATE", "VERSION"],
        [
            [
                *(h["name"], "yes" if h["alive"] else "no", h["part"], h["address"]),
                "" if h["certificate_days_left"] is None else f"{h['certificate_days_left']:.0f} d",
                h["version"],
            ]
            for h in document["hosts"]
        ],
        empty="No hosts.",
    )


def _size(count: int) -> str:
    return f"{count / 2**20:.1f}M" if count else ""


@cluster.command("renew")
@click.option("--force", is_flag=True, help="Also if the certificates are good for long.")
@root_option
@output_option
def renew(force: bool, root: Path) -> None:
    """Renew this host's certificates, and settings that follow the store's members.

    The keeper does so by itself, months before they expire; this is for the impatient, and for
    hosts that were off for too long.

    \b
    Example:
      ozy cluster renew
    """
    from ozymandias.cluster.founding import keeper

    at = here(root)
    restarted = keeper.refresh(at, force=force)
    document = {"host": at.record.name, "restarted": restarted}
    show(document, lambda _: print(f"Restarted: {', '.join(restarted) or 'nothing'}."))


@cluster.command("backup")
@click.argument("file", type=FILE)
@root_option
@output_option
def backup(file: Path, root: Path) -> None:
    """Write all that the cluster knows to FILE: etcd's snapshot, the authority, hashes of tokens.

    On a host that holds the store. The file holds secrets and is readable by root only; data of
    volumes are not in it.

    \b
    Example:
      ozy cluster backup /srv/backup/cluster.tar
    """
    from ozymandias.cluster.founding import snapshots

    manifest = snapshots.backup(here(root), file.absolute())
    size = file.stat().st_size
    document = snapshots.document(manifest) | {"file": str(file), "size_bytes": size}
    text = f"Wrote {file}: revision {manifest.revision}, {_size(size)}. It holds secrets."
    show(document, lambda _: print(text))


@cluster.command("restore")
@click.argument("file", type=FILE)
@click.option("--force", is_flag=True, help="Although members of the store that was still run.")
@host_options
@output_option
def restore(file: Path, force: bool, dry_run: bool, root: Path, **given: Any) -> int:
    """Bring the cluster back as it was when FILE was written, with this host alone in the store.

    Pods that run and were known then are taken up again, not restarted; later ones are stopped.
    First `ozy cluster halt` on every other host; afterwards `ozy cluster resume ADDRESS` there.

    \b
    Example:
      ozy cluster restore /srv/backup/cluster.tar
    """
    from ozymandias.cluster.founding import record, snapshots

    places = record.Places(root=root.absolute())
    record.require_root(places)
    if dry_run:
        print(f"would stop {', '.join(snapshots.STILL)}; put etcd's data aside; restore {file}")
        print("would start etcd; remove the presence of all nodes; start the rest")
        return 0
    at = snapshots.restore(file.absolute(), wish_of(given), places, sayer(), force=force)
    document = {"cluster": at.record.cluster.id, "host": at.record.name, "restored": str(file)}
    text = f"Restored. On every other host: ozy cluster resume {at.record.address}"
    show(document, lambda _: print(text))
    return 0


@cluster.command("halt")
@root_option
@output_option
def halt(root: Path) -> None:
    """Let this host's daemon, keeper and etcd stand still; pods, ingress and names go on.

    \b
    Example:
      ozy cluster halt
    """
    from ozymandias.cluster.founding import snapshots

    at = here(root)
    snapshots.halt(at)
    show(
        {"host": at.record.name, "halted": True},
        lambda _: print("Standing still; `ozy cluster resume` goes on."),
    )


@cluster.command("resume")
@click.argument("address", required=False, default="")
@root_option
@output_option
def resume(address: str, root: Path) -> None:
    """Go on after `halt`; with ADDRESS, after the store that was restored on that host.

    \b
    Examples:
      ozy cluster resume
      ozy cluster resume 192.0.2.11
    """
    from ozymandias.cluster.founding import snapshots

    at = here(root)
    reason = snapshots.resume(at, address)
    text = f"{at.record.name} {reason}."
    show({"host": at.record.name, "reason": reason}, lambda _: print(text))


@cluster.command("remove")
@click.argument("name")
@root_option
@output_option
def remove(name: str, root: Path) -> None:
    """Forget a host that is gone for good: its place in the store, its lease, its records.

    \b
    Example:
      ozy cluster remove host-3
    """
    from ozymandias.cluster.founding import leaving

    leaving.remove(here(root), name)
    show({"removed": name}, lambda _: print(f"Removed {name}; its work is placed elsewhere."))


@click.command("leave")
@click.option("--force", is_flag=True, help="Without moving its work first; also the last host.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long its work may take to move.",
)
@root_option
@output_option
def leave(force: bool, timeout: float, root: Path) -> None:
    """Take this host out of its cluster: move its work, then remove all that was made here.

    Volumes stay. Interrupted, it goes on when it is run again.

    \b
    Example:
      ozy node leave
    """
    from ozymandias.cluster.founding import leaving

    left = leaving.leave(here(root), force=force, drain_seconds=timeout)
    document = {"cluster": left.cluster, "host": left.host, "kept": left.kept}
    kept = f" Volumes are kept in {left.kept}." if left.kept else ""
    show(document, lambda _: print(f"{left.host} has left cluster {left.cluster}.{kept}"))
