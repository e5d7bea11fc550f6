"""Programming errors while a client connects, here in the application's credential provider: loud, and no outage."""

import logging

import pytest
import redis
import redis.asyncio
from redis.credentials import CredentialProvider

pytestmark = [pytest.mark.usefixtures("both_flavours"), pytest.mark.asyncio_too]


class Password(CredentialProvider):
    """Asked for a password, it raises `error` if it has one."""

    def __init__(self, error=None):
        self.error = error
        self.asked = 0

    def get_credentials(self):
        self.asked += 1
        if self.error is not None:
            raise self.error
        return "default", ""

    async def get_credentials_async(self):
        return self.get_credentials()


@pytest.fixture
def connect(nodes, flavour, make_client):
    """Make a client of three nodes; connections to the first ask this provider."""

    def connect(password, **options):
        client_class = redis.Redis if flavour == "threads" else redis.asyncio.Redis
        guarded = client_class.from_url(nodes.urls[0], credential_provider=password)
        return make_client([guarded, *map(client_class.from_url, nodes.urls[1:3])], **options)

    return connect


@pytest.fixture
def complaints(caplog):
    """Return a function that returns the errors logged about nodes, each with its text."""

    def complaints():
        found = [record for record in caplog.records if record.levelno >= logging.ERROR]
        return [(record.name, record.getMessage(), record.exc_info and record.exc_info[1]) for record in found]

    return complaints


@pytest.mark.parametrize("error", [AttributeError("no such attribute"), TypeError("two are missing")])
def test_client_is_not_made_if_its_first_connect_shows_a_mistake(error, connect):
    with pytest.raises(type(error), match=str(error)):
        connect(Password(error)).get_lock("x").acquire(timeout=0.0)


def test_mistake_while_connecting_again_is_logged_once_with_its_traceback(connect, nodes, raw, complaints, eventually):
    password = Password()
    client = connect(password)
    eventually(lambda: [node.state for node in client.nodes()] == ["up"] * 3)
    password.error = mistake = TypeError("two are missing")
    asked = password.asked
    raw[0].client_kill_filter(_type="pubsub")
    eventually(lambda: password.asked >= asked + 3)
    node = client.nodes()[0]
    assert (node.state, node.last_error) == ("down", "TypeError: two are missing")
    ((logger, text, error),) = complaints()
    assert (logger, error) == ("redsync.node", mistake)
    assert node.address in text
    assert client.get_lock("x").acquire(timeout=0.0), "the others are a quorum"
    password.error = None
    eventually(lambda: client.nodes()[0].state == "up")
