"""`redsync dev`: runs throwaway nodes on this machine until the command ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from redsync.cli.exits import FINE, UNAVAILABLE, SetupError
from redsync.cli.output import put, warn, write_json
from redsync.testing.local_nodes import LocalNodes
from redsync.testing.servers import ServerNotFoundError, ServerStartError, pinned_server


@contextlib.contextmanager
def local_nodes(number: int) -> Iterator[LocalNodes]:
    """Run that many nodes in a `with` block.

    Raises:
        SetupError: There is no server, or one does not start.
    """
    try:
        with LocalNodes(number, server=pinned_server()) as nodes:
            yield nodes
    except (ServerNotFoundError, ServerStartError) as error:
        raise SetupError(str(error), UNAVAILABLE) from error


def dev(options: Any) -> int:
    """Run nodes until Ctrl-C, and print how to use them."""
    # Ctrl-C is the normal end at any time, not an error.
    with contextlib.suppress(KeyboardInterrupt), local_nodes(options.nodes) as nodes:
        # New nodes grant nothing until the guard has passed, but these can't have been used before.
        if options.json:
            write_json({"urls": nodes.urls, "restart_guard": 0})
        else:
            put(f"export REDSYNC_URLS={','.join(nodes.urls)}", "export REDSYNC_RESTART_GUARD=0")
        warn(f"{len(nodes.urls)} empty nodes are running ({nodes.version}); Ctrl-C ends them")
        # A signal that comes between Python's check for signals and the system call ends the next sleep.
        while True:
            time.sleep(1.0)
    return FINE
