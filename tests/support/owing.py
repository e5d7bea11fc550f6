"""Replies that nodes still owe a client: an acquire returns as soon as a quorum has answered."""

from redsync import Client


def owing(client: Client) -> bool:
    """Return whether a node owes a reply on any connection of the client; makes it read what has come."""
    life = client.runner.life
    life.maintenance.wake()
    return life.maintenance.own.owes or any(link_set.owes for link_set in life.pool.idle())


def sent_to_all(client: Client) -> bool:
    """Return whether all nodes owe a reply on one set of connections: a round was sent, and none has answered."""
    sets = [reference() for reference in client.runner.life.pool._alive.values()]
    return any(all(link is not None and link.pending for link in each.links) for each in sets if each is not None)
