"""The processes and parts of `bench/scale.py`."""
