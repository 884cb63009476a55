"""`ozy cluster status`: who holds the store, who is in the cluster, how long it is all good for.

By this host's own record and by etcd; whatever does not answer is said, and the rest is shown.
"""

import asyncio
import time
from typing import Any

from ozymandias.cluster.founding import authority, credentials, registry
from ozymandias.cluster.founding.work import Work
from ozymandias.ports import StoreError
from ozymandias.store import keys
from ozymandias.store.etcd import EtcdStore, MemberStatus
from ozymandias.store.etcd_admin import Member
from ozymandias.store.etcd_calls import Timeouts

QUICK = Timeouts(attempt=2.0, call=4.0)


def status(at: Work) -> dict[str, Any]:
    """A plain document; ``problem`` is "" when the store could be read."""
    now = time.time()
    record = at.record
    held = credentials.held(at.places, now)
    document: dict[str, Any] = {
        "cluster": record.cluster.id,
        "host": record.name,
        "stage": record.stage,
        "network": record.cluster.network,
        "dns": record.cluster.dns,
        "members_max": record.cluster.members_max,
        "certificates": [
            {
                "use": one.use,
                "days_left": round(one.seen.days_left(now), 1) if one.seen else None,
                "problem": one.problem,
            }
            for one in held
        ],
        "authority_days_left": _authority_days(at, now),
        "has_authority_key": at.places.authority_key.exists(),
        "services": [
            {"name": service.name, "running": at.runner.is_running(service)}
            for service in at.services()
        ],
        "members": [],
        "hosts": [],
        "problem": "",
    }
    try:
        document |= asyncio.run(_store(at, now))
    except (StoreError, OSError) as error:
        document["problem"] = str(error) or type(error).__name__
    return document


def _authority_days(at: Work, now: float) -> float | None:
    try:
        return round(authority.read(at.places.authority_cert.read_text()).days_left(now), 1)
    except (OSError, ValueError):
        return None


async def _store(at: Work, now: float) -> dict[str, Any]:
    async with at.admin() as admin:
        members = await admin.members()
    endpoints = [url for member in members for url in member.client_urls]
    store = EtcdStore.connect(endpoints, credentials.etcd_credentials(at.places), QUICK)
    try:
        statuses = {found.endpoint: found for found in await store.status()}
        known = await registry.hosts(store)
        alive = {kv.key for kv in (await store.range(keys.NODES)).kvs}
    finally:
        await store.aclose()
    return {
        "members": [_member(member, statuses) for member in members],
        "hosts": [
            {
                "name": host.name,
                "address": host.address,
                "part": host.part,
                "alive": keys.NODES + host.name.encode() in alive,
                "certificate_days_left": round((host.expires - now) / 86_400, 1)
                if host.expires
                else None,
                "version": host.version,
                "joined": host.joined,
            }
            for host in known
        ],
    }


def _member(member: Member, statuses: dict[str, MemberStatus]) -> dict[str, Any]:
    found = next((statuses[url] for url in member.client_urls if url in statuses), None)
    answers = found is not None and not found.problem
    return {
        "name": member.name or "(never started)",
        "address": member.peer_urls[0] if member.peer_urls else "",
        "role": "learner"
        if member.is_learner
        else "leader"
        if answers and found is not None and found.leader_id == member.id
        else "member",
        "version": found.version if found else "",
        "db_size_bytes": found.db_size_bytes if found else 0,
        "revision": found.revision if found else 0,
        "problem": found.problem if found else "it does not run",
    }
