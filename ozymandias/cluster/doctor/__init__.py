"""`ozy doctor`: what is there, what is missing or wrong, what follows, and what to do about it.

Each examination gathers a few facts and returns checks; a check is ok, a warning (it works, but
know this) or a failure (it will not work), and says how to put it right. Nothing is changed.

Three kinds of patients: a cluster on this machine or none yet (`machine`, `local`), a host with the
settings file of its daemon (`host`), a cluster elsewhere that answers by its API alone (`api`).
"""

from collections.abc import Iterator

from ozymandias.cluster.doctor import api, host, local, machine
from ozymandias.cluster.doctor.check import Check, Patient, Verdict, count, worst

__all__ = ["Check", "Patient", "Verdict", "count", "examine", "worst"]


def examine(patient: Patient) -> Iterator[Check]:
    """All checks, in the order in which things depend on each other."""
    if patient.config_file is not None:
        yield from machine.examine(needs_etcd=False)
        yield from host.examine(patient.config_file)
        return
    if patient.is_here:
        yield from machine.examine(needs_etcd=True)
        yield from local.examine(patient.state_dir)
    yield from api.examine(patient)
