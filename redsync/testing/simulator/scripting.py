"""The shipped Lua scripts, executed in process on virtual nodes.

fakeredis can do this too, but it makes a new Lua runtime for every call and reads the system's clock. A re-entry of a
lock costs 151 us there and 6 us here: a hundred thousand simulated runs take minutes, not a night. So one Lua
runtime serves the whole process, each script is compiled once, and as little as possible crosses the border between Lua
and Python: whole replies, no tables. For the same reason only one thread may use it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, Final

import hiredis

from redsync._core.scripts import Arg, Script
from redsync.testing.simulator.commands import COMMANDS, find_command
from redsync.testing.simulator.store import CommandError, Status, Store, format_score

__all__ = ["run_script", "script_of"]


def run_script(script: Script, store: Store, keys: Sequence[bytes], args: Sequence[Arg]) -> Any:
    """Execute a script atomically, at one instant, and return what a client would get.

    Returns:
        int, bytes, None, a list of these, or an error as a value, `hiredis.ReplyError`.

    Raises:
        UnknownCommandError: The script used a command that virtual nodes lack.
    """
    return _interpreter().run(script, store, keys, args)


@functools.cache
def script_of(source: bytes) -> Script:
    """Return the script with that source, shipped or not."""
    sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
    return next((script for script in Script.shipped() if script.sha == sha), Script("script", source, sha))


class _Interpreter:
    """A Lua runtime and the store on which its scripts act now."""

    def __init__(self) -> None:
        try:
            from lupa.lua51 import LuaRuntime
        except ImportError:
            raise ImportError(
                'the simulator needs lupa to run Lua scripts: run `pip install "redsync-toolkit[simulator]"`'
            ) from None
        lua = LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False, register_builtins=False)
        self._as_table = lua.table_from
        sandbox = files("redsync.testing.simulator").joinpath("sandbox.lua").read_bytes()
        self._compile, self._execute = lua.execute(sandbox, self._invoke, lambda *items: list(items), _as_error)
        self._chunks: dict[bytes, Any] = {}
        self._store: Store | None = None

    def run(self, script: Script, store: Store, keys: Sequence[bytes], args: Sequence[Arg]) -> Any:
        chunk = self._chunks.get(script.sha)
        if chunk is None:
            chunk = self._chunks[script.sha] = self._compile(script.source)
        assert self._store is None, "a script is atomic: none can run inside another"
        self._store = store
        store.read_clock()
        if store.refusal is not None:
            store.refusal.begin()
        words = [b"%d" % arg if isinstance(arg, int) else arg() if callable(arg) else arg for arg in args]
        try:
            return self._execute(chunk, len(keys), *keys, *words)
        finally:
            self._store = None

    def _invoke(self, name: bytes, *words: Any) -> Any:
        """Execute a command; return the reply in the form that `answer` in sandbox.lua expects."""
        command = COMMANDS.get(name) or find_command(name)
        try:
            for word in words:
                if type(word) is not bytes:
                    words = tuple(map(_as_bytes, words))
                    break
            if (refusal := self._store.refusal) is not None:  # type: ignore[union-attr]  # a script is running
                refusal.look_at(name)
            reply = command(self._store, *words)
        except CommandError as error:
            return None, b"err", str(error).encode()
        if reply is None:
            return False
        if type(reply) is list:
            if name == b"scan":  # the only nested reply
                return True, reply[0], self._as_table(reply[1])
            return True, *[False if item is None else item for item in reply]
        if type(reply) is Status:
            return None, b"ok", reply
        return reply


_interpreter: Final[Callable[[], _Interpreter]] = functools.cache(_Interpreter)


def _as_bytes(word: Any) -> bytes:
    if type(word) is bytes:
        return word
    if type(word) is int or type(word) is float:
        return format_score(word)  # Lua has only one kind of number, and the node writes it like a score
    raise CommandError("ERR Command arguments must be strings or integers")


def _as_error(text: bytes) -> hiredis.ReplyError:
    return hiredis.ReplyError(text.decode(errors="replace"))
