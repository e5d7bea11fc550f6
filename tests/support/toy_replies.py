"""The toy's nodes' frequent replies to an acquire."""

NEW, OURS, WRONG_TYPE = 1, 2, 0
A, B = b"client-a:1:1", b"client-b:1:1"
LOSS = ("tell lock_release", "notify HoldLost")
"""The effects by which a hold is lost, and that is reported."""
SPLIT = (NEW, NEW, [20_000, A, 0], [20_000, B, 0], [20_000, B, 0])


def held(remaining=20.0, by=A):
    """A refusal: another owner holds it for that many more seconds; None: without an end."""
    return [-1 if remaining is None else round(remaining * 1000), by, 0]


def won(toy):
    return toy.all_say(NEW)


def busy(toy, remaining=20.0):
    return toy.all_say(held(remaining))


def waiting_script(toy):
    """Refused, then queued, then woken, then won."""
    return [
        ("ask lock_acquire", busy(toy)),
        ("ask lock_acquire for a place", busy(toy)),
        ("wait for wake-up", toy.slept(0.05, signals=3)),
        ("ask lock_acquire for a place", won(toy)),
    ]


def without_quorum(toy):
    return toy.all_say("down", sent=0)


def kind_there(toy, kind=b"list"):
    """The look that names what is at the key, for an error, and its replies."""
    return "ask name_inspect", toy.all_say([kind, [], 0, [], 0, 0, 0, []])
