"""All kinds of locks that clients make, for tests of what they have in common; both flavours make them alike."""

__all__ = ["KINDS", "LOCKS", "REENTRANT", "another"]


def _multi(client, name, timeout=None, **options):
    locks = client.get_lock(name, **options), client.get_mutex(f"{name} too", **options)
    return client.get_multi_lock(*locks, timeout=timeout)


LOCKS = {
    "lock": lambda client, name="x", **options: client.get_lock(name, **options),
    "fair": lambda client, name="x", **options: client.get_fair_lock(name, **options),
    "fenced": lambda client, name="x", **options: client.get_fenced_lock(name, **options),
    "spin": lambda client, name="x", **options: client.get_spin_lock(name, **options),
    "mutex": lambda client, name="x", **options: client.get_mutex(name, **options),
    "read": lambda client, name="x", **options: client.get_read_write_lock(name, **options).read_lock,
    "write": lambda client, name="x", **options: client.get_read_write_lock(name, **options).write_lock,
    "multi": lambda client, name="x", **options: _multi(client, name, **options),
}
"""What one owner at a time holds, or several readers do, with the interface of a lock."""

KINDS = {**LOCKS, "semaphore": lambda client: client.get_semaphore("x", 1)}
"""All that `with` takes and gives back."""

REENTRANT = sorted(set(LOCKS) - {"mutex", "multi"})


def another(kind):
    """Return the kind that somebody else asks for where this one is held: readers keep only writers out."""
    return LOCKS["write" if kind == "read" else kind]
