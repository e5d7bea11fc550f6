"""`python -m redsync.cli` is the same as `redsync`."""

import sys

from redsync.cli import main

if __name__ == "__main__":
    sys.exit(main())
