"""Owners and their identities."""

import pickle

from redsync._core.keys import wake_channel
from redsync._core.ownership import Owner


def test_owner_is_written_as_redisson_does():
    owner = Owner("285475da-9152-4c83-822a-67ee2f116a79", 52)
    assert owner.wire == b"285475da-9152-4c83-822a-67ee2f116a79:52"
    assert str(owner) == "285475da-9152-4c83-822a-67ee2f116a79:52"
    assert (owner.client_id, owner.serial) == ("285475da-9152-4c83-822a-67ee2f116a79", 52)


def test_owner_is_woken_over_its_clients_channel():
    assert Owner("c", 7).channel == wake_channel("c")


def test_owners_are_compared_by_identity():
    one, other = Owner("c", 1), Owner("c", 1)
    assert one == one  # noqa: PLR0124 - the point of the test
    assert one != other
    assert len({one, other}) == 2
    assert {one: "found"}.get(other) is None


def test_wire_forms_of_different_owners_differ():
    owners = [Owner(client, serial) for client in ("a", "a:1", "b") for serial in (1, 11, 111)]
    assert len({owner.wire for owner in owners}) == len(owners)


def test_pickled_owner_has_its_identity():
    assert str(pickle.loads(pickle.dumps(Owner("c", 1)))) == "c:1"
