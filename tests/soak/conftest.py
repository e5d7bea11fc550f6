"""The soak's modules import each other as `tests.soak...`, here and in the client processes."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:  # `python -m pytest` adds it, `pytest` does not
    sys.path.append(ROOT)
