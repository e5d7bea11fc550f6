"""Lets functions of tests pass for functions of ours: an error raised in other modules counts as an interruption."""

from types import FunctionType


def of_ours(function):
    """Return a function as if it stood in a module of ours."""
    scope = {**function.__globals__, "__name__": "redsync._protocols.somewhere"}
    return FunctionType(function.__code__, scope, closure=function.__closure__)
