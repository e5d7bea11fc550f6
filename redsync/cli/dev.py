"""`redsync dev`: runs throwaway nodes on this machine until the command ends."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from redsync.cli.exits import FINE, UNAVAILABLE, SetupError
from redsync.cli.output import put, warn, write_json
from redsync.testing.local_nodes import LocalNodes
from redsync.testing.servers import ServerNotFoundError, ServerStartError, pinned_server


def dev(options: Any) -> int:
    """Run nodes until Ctrl-C, and print how to use them."""
    try:
        # Ctrl-C is the normal end at any time, not an error.
        with contextlib.suppress(KeyboardInterrupt), LocalNodes(options.nodes, server=pinned_server()) as nodes:
            _introduce(nodes, as_json=options.json)
            # A signal that comes between Python's check for signals and the system call ends the next sleep.
            while True:
                time.sleep(1.0)
    except (ServerNotFoundError, ServerStartError) as error:
        raise SetupError(str(error), UNAVAILABLE) from error
    return FINE


def _introduce(nodes: LocalNodes, *, as_json: bool) -> None:
    urls = nodes.urls
    if as_json:
        write_json({"urls": urls, "restart_guard": 0})
    else:
        put(f"export REDSYNC_URLS={','.join(urls)}")
        # New nodes grant nothing until the guard has passed, but these can't have been used before.
        put("export REDSYNC_RESTART_GUARD=0")
    warn(f"{len(urls)} empty nodes are running ({nodes.version}); Ctrl-C ends them")
