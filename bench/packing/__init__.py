"""How well the planners pack, against the optimum and against others: `make bench-packing`."""
