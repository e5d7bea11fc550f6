"""Decorators accept functions and methods, in any wrapping, and refuse anything else at once."""

import functools
import inspect
import operator
import re
import sys
import threading
from contextlib import contextmanager
from unittest import mock

import pytest

from redsync import AsyncClient, Client

NO_NODE = ["redis://127.0.0.1:1"]


def plain(number=1):
    return number


async def coroutine(number=1):
    return number


def generator(number=1):
    yield number


async def async_generator(number=1):
    yield number


@contextmanager
def manager():
    yield


class Called:
    def __call__(self, number=1):
        return number


class Awaited:
    async def __call__(self, number=1):
        return number


class BoundLikeAMethod(Called):
    def __get__(self, thing, kind=None):
        return self


class Thing:
    def plain(self):
        return 1

    async def coroutine(self):
        return 1

    def generator(self):
        yield

    def with_number(self, number):
        return number

    part = functools.partialmethod(with_number, 1)

    @classmethod
    def of_class(cls):
        return 1


def wrapping(inner):
    """Return a plain function that declares what it wraps, like a user's own decorator."""

    @functools.wraps(inner)
    def outer(*args, **kwargs):
        return inner(*args, **kwargs)

    return outer


def awaiting(inner):
    """Return a coroutine function that declares what it wraps."""

    @functools.wraps(inner)
    async def outer(*args, **kwargs):
        result = inner(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    return outer


PLAIN = {
    "function": plain,
    "partial of a partial": functools.partial(functools.partial(plain), number=1),
    "method": Thing().plain,
    "partial method": Thing().part,
    "method of a class": Thing.of_class,
    "method of a callable object": Called().__call__,
    "builtin": len,
    "method of a builtin object": [].append,
    "wrapped": wrapping(plain),
    "wrapped object": wrapping(Called()),
    "cached": functools.lru_cache(plain),
}
COROUTINES = {
    "coroutine function": coroutine,
    "partial of a partial": functools.partial(functools.partial(coroutine), 1),
    "method": Thing().coroutine,
    "method of an object": Awaited().__call__,
    "awaiting one": awaiting(coroutine),
    "awaiting an object": awaiting(Awaited()),
    "awaiting what a function returns": functools.partial(awaiting(plain), 1),
}
WRAPPED_COROUTINES = {
    "wrapped partial": wrapping(functools.partial(coroutine, 1)),
    "wrapped method": wrapping(Thing().coroutine),
    "wrapped object": wrapping(Awaited()),
    "cached": functools.cache(coroutine),
}
GENERATORS = {
    "generator": generator,
    "partial of a partial": functools.partial(functools.partial(async_generator)),
    "method": Thing().generator,
    "wrapped twice": wrapping(wrapping(async_generator)),
    "cached": functools.cache(generator),
    "context manager": manager,
    "awaiting": awaiting(generator),
}
OTHERS = {
    "object": Called(),
    "async object": Awaited(),
    "object bound like a method": BoundLikeAMethod(),
    "partial of an object": functools.partial(Awaited()),
    "partial of a class": functools.partial(Thing),
    "class": Thing,
    "mock": mock.Mock(),
    "getter": operator.itemgetter(1),
    "partial method": functools.partialmethod(plain, 1),
    "property": property(plain),
    "number": 5,
}


def not_refused(decorators, functions, words):
    """Return the names of the functions that one of these decorators does not refuse in such words."""

    def is_refused(decorate, function):
        try:
            decorate(function)
        except TypeError as error:
            return re.search(words, str(error))
        return False

    return [name for name, function in functions.items() if not all(is_refused(each, function) for each in decorators)]


@pytest.fixture(scope="module")
def client():
    told = threading.Event()
    with Client(NO_NODE, listeners=[lambda _: told.set()]) as client:
        assert told.wait(20)  # From then on all its threads run.
        yield client


@pytest.fixture(params=["lock", "limiter", "limiter with options"])
def of(request):
    """Return a client's decorator of some kind."""

    def decorator_of(client):
        limiter = client.get_rate_limiter("x", 1, 1)
        made = {"lock": client.locked("x"), "limiter": limiter, "limiter with options": limiter(timeout=1)}
        return made[request.param]

    return decorator_of


@pytest.fixture
def decorator(of, client):
    return of(client)


@pytest.fixture
def async_decorator(of):
    return of(AsyncClient(NO_NODE))


def test_function_is_decorated(decorator):
    assert not [name for name, function in PLAIN.items() if inspect.iscoroutinefunction(decorator(function))]


def test_coroutine_function_is_decorated(async_decorator):
    assert all(inspect.iscoroutinefunction(async_decorator(function)) for function in COROUTINES.values())


def test_coroutine_function_is_refused_by_the_client_for_threads(decorator):
    words = "is a coroutine function: use the AsyncClient's decorator"
    assert not_refused([decorator], {**COROUTINES, **WRAPPED_COROUTINES}, words) == []


def test_function_is_refused_by_the_client_for_asyncio(async_decorator):
    words = "is not a coroutine function: use the Client's decorator"
    for functions in (PLAIN, WRAPPED_COROUTINES):
        assert not_refused([async_decorator], functions, words) == []


def test_generator_function_is_refused(decorator, async_decorator):
    words = "is a generator function: its body would run without the (lock|limit)"
    assert not_refused([decorator, async_decorator], GENERATORS, words) == []


def test_anything_but_a_function_is_refused(decorator, async_decorator):
    assert not_refused([decorator, async_decorator], OTHERS, "is neither a function nor a method") == []


def test_decorator_must_be_below_classmethod_and_staticmethod(decorator, async_decorator):
    words = "^@(staticmethod|classmethod) must be above this decorator"
    functions = {"staticmethod": staticmethod(plain), "classmethod": classmethod(plain)}
    assert not_refused([decorator, async_decorator], functions, words) == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there is no mark for coroutine functions before Python 3.12")
def test_marked_function_is_a_coroutine_function(client):
    marked = inspect.markcoroutinefunction(wrapping(plain))
    with pytest.raises(TypeError, match="is a coroutine function"):
        client.locked("x")(wrapping(marked))
    assert inspect.iscoroutinefunction(AsyncClient(NO_NODE).locked("x")(marked))
