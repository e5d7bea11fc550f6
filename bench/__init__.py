"""The performance figures of redsync, each beside its floor: `make bench`, or `python -m bench --help`."""
