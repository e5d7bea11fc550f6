"""The test vectors of `docs/protocol.md`, executed by a real server: what clients in other languages may rely on.

A vector has the keys before, the call, the reply, the keys after, and the messages that were published. All of it is
one transaction, so times to live differ by milliseconds at most. `INSTANT` stands for the server's clock in ms, before
the call perhaps with what is added, `INSTANT+3000`; `PROCESS` for the server's process.
"""

import json
import os
import re
from pathlib import Path

import pytest

from redsync._core.scripts import Script
from tests.core.conftest import process_of

VECTORS = Path(__file__).parents[1] / "vectors"
SCRIPTS = VECTORS / "scripts.json"
NEAR = 20
"""Milliseconds by which two times may differ."""

CHANNEL = re.compile(r"redsync:wake:[\w-]+|redisson_lock__channel:[^\"]+")
"""A channel in a vector; clients listen on all of them."""

WRITERS = {
    "hash": lambda pipe, key, value: pipe.hset(key, mapping=value),
    "string": lambda pipe, key, value: pipe.set(key, value),
    "zset": lambda pipe, key, value: pipe.zadd(key, value),
}
READERS = {
    "hash": lambda pipe, key: pipe.hgetall(key),
    "string": lambda pipe, key: pipe.get(key),
    "zset": lambda pipe, key: pipe.zrange(key, 0, -1, withscores=True),
}


def vectors():
    for path in sorted(VECTORS.glob("*.json")):
        if path != SCRIPTS:
            for vector in json.loads(path.read_text()):
                yield pytest.param(vector, id=f"{path.stem}: {vector['name']}")


def test_scripts_of_the_vectors_are_those_of_the_package():
    shipped = {each.name: {"sha1": each.sha.decode(), "source": each.source.decode()} for each in Script.shipped()}
    if os.environ.get("REDSYNC_WRITE_SCRIPTS"):
        SCRIPTS.write_text(json.dumps(shipped, indent=1) + "\n")
    assert json.loads(SCRIPTS.read_text()) == shipped, "REDSYNC_WRITE_SCRIPTS=1 writes them"


@pytest.mark.parametrize("vector", list(vectors()))
def test_server_does_what_the_vector_says(node, vector):
    before, args = as_told(vector["before"], node), as_told(vector["args"], node)
    script = Script.load(vector["script"])
    node.redis.script_load(script.source)
    kept = vector["after"]
    with (
        node.listening("none", *set(CHANNEL.findall(json.dumps(vector)))) as listener,
        node.redis.pipeline(transaction=True) as pipe,
    ):
        for key, content in before.items():
            ((kind, value),) = [(kind, value) for kind, value in content.items() if kind in WRITERS]
            WRITERS[kind](pipe, key, value)
            if "ttl_ms" in content:
                pipe.pexpire(key, content["ttl_ms"])
        pipe.evalsha(script.sha, len(vector["keys"]), *vector["keys"], *args)
        pipe.dbsize()
        for key, content in kept.items():
            READERS[next(kind for kind in content if kind in READERS)](pipe, key)
            pipe.pttl(key)
        # The replies to what was set up come first.
        reply, number, *read = pipe.execute(raise_on_error=False)[-2 - 2 * len(kept) :]
        heard = node.messages(listener)
    process = process_of(node.redis)
    assert near(plain(reply, process), vector["reply"])
    for (key, content), value, ttl in zip(kept.items(), read[::2], read[1::2], strict=True):
        (wanted,) = [each for kind, each in content.items() if kind in READERS]
        found = plain(value, process)
        assert near(dict(found) if isinstance(found, list) else found, wanted), key
        assert 0 < ttl <= content["most_ms"] if "most_ms" in content else near(ttl, content.get("ttl_ms", -1)), key
    assert number == len(kept)
    assert plain(heard, process) == vector["published"]


def as_told(value, node):
    """Return a part of a vector with the server's clock and process in place of their names."""
    now = node.redis.time()[0] * 1000
    text = re.sub(r"INSTANT\+(\d+)", lambda found: str(now + int(found[1])), json.dumps(value))
    return json.loads(text.replace("INSTANT", str(now)).replace("PROCESS", process_of(node.redis)))


def plain(value, process):
    """Return a reply as vectors have it: text for bytes and errors, names for what the server decides."""
    if isinstance(value, bytes | Exception):
        text = value.decode() if isinstance(value, bytes) else f"error {value}"
        return re.sub(r"\b\d{13}\b", "INSTANT", text).replace(process, "PROCESS")
    if isinstance(value, dict):
        return {plain(key, process): plain(each, process) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, process) for each in value]
    return "INSTANT" if isinstance(value, int | float) and value > 1e12 else value


def near(found, expected):
    """Return whether two values are equal, but for times, which may differ a little."""
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(near(found[key], expected[key]) for key in found)
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(near, found, expected))
    if isinstance(found, int) and isinstance(expected, int) and expected > 100:
        return abs(found - expected) <= NEAR
    return found == expected
