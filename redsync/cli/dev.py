"""`redsync dev`: throwaway nodes on this machine, for as long as the command runs."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any

from redsync.cli.exits import FINE, UNAVAILABLE, SetupError
from redsync.cli.writing import write_json

__all__ = ["dev"]


def dev(options: Any) -> int:
    """Run nodes until Ctrl-C, and tell how to use them."""
    from redsync.testing.local_nodes import LocalNodes
    from redsync.testing.servers import ServerNotFoundError, ServerStartError

    try:
        # Ctrl-C is how it ends, whenever that is: nothing to complain of.
        with contextlib.suppress(KeyboardInterrupt), LocalNodes(options.nodes) as nodes:
            _introduce(nodes.urls, as_json=options.json)
            threading.Event().wait()
    except (ServerNotFoundError, ServerStartError) as error:
        raise SetupError(str(error), UNAVAILABLE) from error
    return FINE


def _introduce(urls: list[str], *, as_json: bool) -> None:
    if as_json:
        write_json({"urls": urls, "restart_guard": 0})
    else:
        print(f"export REDSYNC_URLS={','.join(urls)}")
        # New nodes grant nothing before the guard is over, and nobody can have relied on these before.
        print("export REDSYNC_RESTART_GUARD=0", flush=True)
    print(f"{len(urls)} nodes run, empty; Ctrl-C ends them", file=sys.stderr, flush=True)
