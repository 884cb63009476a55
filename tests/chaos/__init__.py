"""Chaos on real hosts: `make chaos MINUTES=10 SEED=1`. What it does and found: docs/reliability.md.

`cluster.py` runs the hosts, `load.py` uses them, `nemesis.py` breaks them by `faults.py`,
`watching.py` and `processes.py` look at the truth meanwhile, `checks.py` in the end.
"""
