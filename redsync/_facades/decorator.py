"""`@client.locked("report:{user_id}")`: runs a function under a lock that its arguments name."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Mapping
from typing import Any

from redsync._core.timing import check_timeout
from redsync._facades.wrapping import OnBusy, check_on_busy

__all__ = ["locked_decorator"]


def locked_decorator(
    wrapped: Callable[..., Any],
    get_lock: Callable[..., Any],
    template: str,
    on_busy: OnBusy,
    options: Mapping[str, Any],
) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator that `Client.locked` documents; `wrapped` is `wrap` or `wrap_async`."""
    if not isinstance(template, str):
        raise TypeError(f"the name for @client.locked must be a string, not {template!r}")
    options = {**options, "timeout": check_timeout(True, options.get("timeout"))}
    check_on_busy(on_busy)

    def lock_of(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)
        # Make a lock and drop it: this finds errors in options and in the constant parts of the name.
        get_lock(_fill_on_trial(template, signature), **options)

        def lock_of_call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return get_lock(_FORMATTER.vformat(template, (), bound.arguments), **options)

        return lock_of_call

    return lambda function: wrapped(function, lambda: lock_of(function), on_busy, "the lock")


class _Formatter(string.Formatter):
    """Reads text as `get_lock` does: a member of `class Job(str, Enum)` is its value, not `Job.REPORT`."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        return super().format_field(str.__str__(value) if isinstance(value, str) else value, format_spec)


_FORMATTER = _Formatter()

_OF_CLASSES = frozenset({"__class__", "__module__", "__name__", "__qualname__"})
_INNARDS = frozenset(
    {"ag_code", "ag_frame", "cr_code", "cr_frame", "f_back", "f_builtins", "f_code", "f_globals", "f_locals"}
    | {"gi_code", "gi_frame", "tb_frame"}
)
"""Attributes of generators, coroutines and tracebacks that lead to code and variables outside the arguments."""


class _Probe:
    """Stands for every argument in a template's check; refuses attributes that a template must not read."""

    def __getattribute__(self, name: str) -> _Probe:
        # If an argument is a function, `{f.__globals__[x]}` would read the global variables of its module.
        if name in _INNARDS or (name.startswith("_") and name not in _OF_CLASSES):
            raise AttributeError(name=name)
        return self

    def __getitem__(self, _: object) -> _Probe:
        return self

    def __format__(self, _: str) -> str:
        return "1"  # which is also valid as the width of another field

    def __repr__(self) -> str:
        return "1"


def _fill_on_trial(template: str, signature: inspect.Signature) -> str:
    """Return a sample name from the template; `str.format` itself parses it, so nested fields are checked too."""
    names = signature.parameters
    known = ", ".join(names) or "none"
    try:
        return template.format(**dict.fromkeys(names, _Probe()))
    except KeyError as error:
        message = f"names {error.args[0]!r}, which is not a parameter of the function (it has: {known})"
    except IndexError:
        message = f"has a field without a name, so it matches no parameter of the function (it has: {known})"
    except AttributeError as error:
        message = f"reads the attribute {error.name!r}, which is not public: use a parameter or a property"
    except ValueError as error:
        message = f"is not a template for str.format: {error} (double each literal brace)"
    raise ValueError(f"{template!r} {message}")
