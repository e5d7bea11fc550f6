"""Benchmarks of redsync, each next to its floor: `make bench`, or `python -m bench --help`."""
