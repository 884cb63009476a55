"""The figures that are promised, measured on this machine: `make bench`."""
