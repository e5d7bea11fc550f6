"""Replies that nodes still owe a client: an acquire returns as soon as a quorum has answered."""

from redsync import Client


def owing(client: Client) -> bool:
    """Return whether a node owes a reply on any connection of the client; makes it read what has come."""
    life = client.runner.life
    life.maintenance.wake()
    return life.maintenance.own.owes or any(link_set.owes for link_set in life.pool.idle())
