"""The cluster's settings: written through the same door as schedules, read from every snapshot."""

from ozymandias.model.node import Load
from ozymandias.model.plan import Plan
from ozymandias.model.record import replace
from ozymandias.model.settings import RebalanceMode, Settings
from ozymandias.model.snapshot import Snapshot
from ozymandias.ports import Put
from ozymandias.store import codec, keys
from ozymandias.store.commit import Committed
from tests.unit.store.rig import in_virtual_time, peers


def raised(snapshot: Snapshot) -> Plan:
    """One more percent than before: two of these may not both be decided on the same record."""
    percent = snapshot.settings.target_percent + 1
    return Plan(reason="more", settings=replace(snapshot.settings, target_percent=percent))


def test_settings_reach_every_peer_and_none_is_lost() -> None:
    """Two peers that change the settings at once both get their change, one after the other."""

    async def main() -> None:
        async with peers(("n1", "n2")) as (etcd, (one, two)):
            assert one.mirror.snapshot().settings == Settings()
            for peer in (one, two):
                assert isinstance(await peer.committer.commit(raised), Committed)
            await one.mirror.reached(etcd.revision)
            found = one.mirror.snapshot().settings
            assert found.target_percent == Settings().target_percent + 2
            assert found.rebalance is RebalanceMode.SUGGEST

    in_virtual_time(main)


def test_a_node_under_pressure_takes_no_work() -> None:
    """What a node says of its load is in the snapshot, and a taint closes it until it goes."""

    async def main() -> None:
        async with peers(("n1",)) as (etcd, (one,)):
            name = one.node
            tainted = codec.encode(Load(taint="memory pressure"))
            for value, is_open in ((tainted, False), (codec.encode(Load()), True)):
                await one.store.txn((), (Put(keys.load(name), value),))
                await one.mirror.reached(etcd.revision)
                assert one.mirror.snapshot().nodes[name].is_schedulable is is_open

    in_virtual_time(main)
