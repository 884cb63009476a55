"""The most instances that any packing can place, by OR-Tools' CP-SAT; the only user of a solver.

One integer per job and node says how many of the job are there. A proven optimum is exact; when the
time is up first, the bound stands in for it, which is never less than the optimum: a share of it
is never flattering. A solver that had no time to begin says 0, which bounds nothing: then all that
is wanted stands for it.
"""

from dataclasses import dataclass

from ortools.sat.python import cp_model

from bench.packing.clusters import Cluster, Machine, Packing, Work

SEED = 1  # the solver rolls dice of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    most: int  # no packing places more
    is_proven: bool  # this one places as many
    packing: Packing


def optimum(cluster: Cluster, limit_seconds: float) -> Optimum:
    model = cp_model.CpModel()
    counts = {
        (work.name, machine.name): model.new_int_var(0, _most(work, machine), "")
        for work in cluster.works
        for machine in cluster.machines
    }
    for work in cluster.works:
        model.add(sum(counts[work.name, m.name] for m in cluster.machines) <= work.instances)
    for machine in cluster.machines:
        _within(model, counts, cluster, machine)
    _neighbours(model, counts, cluster)
    model.maximize(sum(counts.values()))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_seconds
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = SEED
    status = solver.solve(model)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    bound = int(solver.best_objective_bound + 1e-6) if found else cluster.wanted
    return Optimum(
        most=min(cluster.wanted, bound),
        is_proven=status == cp_model.OPTIMAL,
        packing={pair: n for pair, count in counts.items() if (n := solver.value(count))}
        if found
        else {},
    )


def _most(work: Work, machine: Machine) -> int:
    """By the job's own rules, and by what the machine has when it is empty."""
    if work.role and work.role != machine.role:
        return 0
    most = min(work.instances, machine.memory // work.memory)
    if work.disk:
        most = min(most, machine.disk // work.disk)
    if work.cpu and machine.cpu:
        most = min(most, machine.cpu // work.cpu)
    if work.per_node:
        most = min(most, work.per_node)
    return min(most, 1) if work.port else most


def _within(
    model: cp_model.CpModel,
    counts: dict[tuple[str, str], cp_model.IntVar],
    cluster: Cluster,
    machine: Machine,
) -> None:
    works, node = cluster.works, machine.name
    model.add(sum(w.memory * counts[w.name, node] for w in works) <= machine.memory)
    model.add(sum(w.disk * counts[w.name, node] for w in works) <= machine.disk)
    if machine.cpu:
        model.add(sum(w.cpu * counts[w.name, node] for w in works) <= machine.cpu)
    for port in {work.port for work in works if work.port}:
        model.add(sum(counts[w.name, node] for w in works if w.port == port) <= 1)


def _neighbours(
    model: cp_model.CpModel, counts: dict[tuple[str, str], cp_model.IntVar], cluster: Cluster
) -> None:
    for work in cluster.works:
        for machine in cluster.machines if work.near or work.apart else ():
            here = counts[work.name, machine.name]
            is_here = model.new_bool_var("")
            model.add(here == 0).only_enforce_if(~is_here)
            if work.apart:
                model.add(counts[work.apart, machine.name] == 0).only_enforce_if(is_here)
            if work.near:
                model.add(counts[work.near, machine.name] >= 1).only_enforce_if(is_here)
