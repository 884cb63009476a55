"""Clusters of real hosts: founded by `ozy cluster init`, joined, left, copied and brought back.

What a host is to be is written down first (`record.py`); from it follow, as values, its files and
programs (`files.py`, `services.py`), which systemd or a small supervisor of ours runs
(`running.py`, `supervise.py`). Every command can be run again: it looks at what is there, does
what is missing, and says so.
"""
