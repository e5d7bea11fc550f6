"""`python -m redsync.cli`: the same as `redsync`."""

import sys

from redsync.cli import main

if __name__ == "__main__":
    sys.exit(main())
