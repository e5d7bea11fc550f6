"""Draw the documentation's figures: `python tools/figures.py`; with `--check`, list the stale ones.

Numbers come from the source: leases from `Timing`, quorums from `quorum_of`, plots from benchmarks.json.
docs/figures/demo.svg shows a real run: `make docs DEMO=1`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / "docs" / "figures"
sys.path.insert(0, str(FOLDER.parents[1]))

from bench.drawing import Colour, Figure  # noqa: E402  (of this checkout)
from bench.plots import PUBLISHED, plots, rows_of  # noqa: E402
from redsync._core.quorum import quorum_of  # noqa: E402
from redsync._core.timing import Timing  # noqa: E402


def lease() -> Figure:
    """Return a lease on a timeline: when the hold is valid, renewed and lost."""
    timing = Timing(lease=30.0)
    renewed = timing.lease / 3
    figure = Figure(860, 300, "A lease on a timeline")

    def at(second: float) -> float:
        return 50 + second * 11

    figure.words(24, 32, "One hold, lease 30 s", bold=True, size=16)
    figure.line((at(-1), 150), (at(71), 150), arrow=True)
    for second in range(0, 70, 10):
        figure.line((at(second), 146), (at(second), 154))
        figure.words(at(second), 172, f"{second} s", colour="muted", anchor="middle", size=12)
    ends = [timing.valid_until(start, timing.lease) for start in (0.0, renewed, 2 * renewed)]
    for number, end in enumerate(ends):
        top = 66 + number * 24
        colour: Colour = "accent"
        figure.line((at(number * renewed), top), (at(end), top), colour=colour, width=8)
        figure.words(at(end) + 8, top + 5, f"valid until {end:.1f} s", colour="muted", size=12)
    figure.dot(at(0), 150, colour="good")
    figure.words(at(0), 204, "requested", anchor="middle", size=12)
    for number in (1, 2):
        figure.dot(at(number * renewed), 150, colour="good")
    figure.words(
        at(1.5 * renewed), 204, "renewed by the watchdog,", "every third of the lease", anchor="middle", size=12
    )
    figure.cross(at(3 * renewed), 150, colour="warn")
    figure.words(
        at(3 * renewed), 204, "no quorum answers;", "the watchdog retries", anchor="middle", size=12, colour="warn"
    )
    figure.cross(at(ends[-1]), 150)
    figure.words(
        at(ends[-1]),
        204,
        "lost: the holder is notified;",
        "the hold stays lost",
        anchor="middle",
        size=12,
        colour="bad",
    )
    allowance = timing.drift(timing.lease) * 1000
    figure.words(
        24,
        262,
        "The holder counts from before it sends the first byte; nodes count from the later arrival of the request.",
        f"The hold ends {allowance:.0f} ms early, as the rates of the clocks may differ by 1 %.",
        colour="muted",
        size=13,
    )
    return figure


def quorum() -> Figure:
    """Return a round over five nodes, one of which hangs."""
    nodes = 5
    figure = Figure(860, 300, "A round over five nodes, one of which hangs")
    figure.words(24, 32, f"A round: {quorum_of(nodes)} of {nodes} decide", bold=True, size=16)
    figure.box(24, 120, 130, 60, "client", colour="accent", word_colour="paper")
    outcomes: list[tuple[str, Colour, str]] = [
        ("node 1", "good", "granted"),
        ("node 2", "good", "granted"),
        ("node 3", "bad", "hangs: no answer"),
        ("node 4", "good", "granted: a quorum, the lock is held"),
        ("node 5", "muted", "answers late; the client records it"),
    ]
    for number, (name, colour, what) in enumerate(outcomes):
        y = 62 + number * 46
        figure.line((154, 150), (300, y + 16), colour="muted", arrow=True)
        figure.box(304, y, 100, 32, name, edge=colour)
        if colour == "bad":
            figure.cross(440, y + 16)
            figure.words(462, y + 21, what, colour="bad", size=13)
        else:
            figure.line((408, y + 16), (448, y + 16), colour=colour, arrow=True)
            figure.words(462, y + 21, what, colour=colour, size=13)
    figure.words(24, 214, "one write to each,", "all at once", colour="muted", size=12)
    return figure


def fencing() -> Figure:
    """Return a paused holder, without and with a fencing token."""
    figure = Figure(860, 400, "A holder that is paused, without and with a fencing token")
    for top, token in ((0, False), (200, True)):
        title = (
            "With a token: the resource refuses late writes" if token else "Without a token: a pause outlives the lease"
        )
        figure.words(24, top + 32, title, bold=True, size=16)
        for row, name in enumerate(("A", "B", "file")):
            y = top + 70 + row * 44
            figure.words(24, y + 5, name)
            figure.line((70, y), (836, y), colour="paper", width=2)
        a, b, file = (top + 70 + row * 44 for row in range(3))
        figure.line((90, a), (250, a), colour="accent", width=8)
        figure.words(92, a - 12, "holds, token 33" if token else "holds", size=12)
        figure.line((250, a), (600, a), colour="warn", width=3, dashed=True)
        figure.words(300, a - 12, "paused (garbage collection, a busy host, a closed laptop)", colour="warn", size=12)
        figure.line((400, b), (560, b), colour="accent", width=8)
        figure.words(402, b - 12, "holds, token 34" if token else "holds", size=12)
        figure.line((480, b), (480, file - 4), colour="good", arrow=True)
        figure.words(488, file - 12, "writes 34" if token else "writes", colour="good", size=12)
        figure.line((620, a), (620, file - 8), colour="bad", arrow=True)
        if token:
            figure.cross(620, file)
            figure.words(636, file - 12, "33 < 34: refused", colour="good", size=12)
        else:
            figure.dot(620, file, colour="bad")
            figure.words(636, file - 12, "overwrites B's write", colour="bad", size=12)
        figure.words(636, a + 20, "resumes, unaware", colour="warn", size=12)
    return figure


def restart() -> Figure:
    """Return a restarted node, without and with the guard."""
    figure = Figure(860, 420, "A node that restarts without its data, without and with the guard")
    for top, guarded in ((0, False), (208, True)):
        title = (
            "With restart_guard: no vote until the old hold is over"
            if guarded
            else "A node forgets, and votes at once: two owners"
        )
        figure.words(24, top + 32, title, bold=True, size=16)
        for row in range(3):
            y = top + 62 + row * 44
            figure.words(24, y + 20, f"node {row + 1}")
            if row == 0:
                figure.box(90, y, 330, 30, "A's claim", edge="accent", size=12)
                figure.box(440, y, 380, 30, "A's claim, renewed" if guarded else "A's claim", edge="accent", size=12)
            elif row == 1:
                figure.box(90, y, 150, 30, "A's claim", edge="accent", size=12)
                figure.cross(262, y + 15)
                if guarded:
                    figure.box(
                        284, y, 376, 30, "kept out of new grants: restart_guard", edge="warn", dashed=True, size=12
                    )
                    figure.box(670, y, 150, 30, "votes again", edge="good", size=12)
                else:
                    figure.box(340, y, 480, 30, "B's claim: the node knows no other", edge="bad", size=12)
            elif guarded:
                figure.box(90, y, 570, 30, "free: B asks, and gets one vote of three", edge="muted", size=12)
            else:
                figure.box(340, y, 480, 30, "B's claim", edge="bad", size=12)
        last = "no second owner" if guarded else "A believes it holds nodes 1 and 2, B nodes 2 and 3"
        figure.words(90, top + 196, last, colour="good" if guarded else "bad", size=12)
    return figure


def handover() -> Figure:
    """Return a release that hands the lock over to the head of the queue."""
    figure = Figure(860, 270, "A release hands the lock over to the head of the queue")
    figure.words(24, 32, "A release hands the lock over", bold=True, size=16)
    figure.box(24, 60, 120, 44, "A releases", edge="accent")
    figure.line((144, 82), (226, 82), arrow=True)
    figure.words(152, 72, "one script", size=12, colour="muted")
    figure.box(230, 50, 300, 150, edge="muted")
    figure.words(246, 74, "on each node, in one step", size=13, bold=True)
    figure.words(
        246, 100, "1  deletes A's claim", "2  gives the claim to B, first in the queue", "3  moves C up", size=13
    )
    figure.line((246, 162), (514, 162), colour="paper", width=2)
    for number, (name, colour) in enumerate((("B", "good"), ("C", "muted"), ("D", "muted"))):
        edge: Colour = "good" if colour == "good" else "muted"
        figure.box(246 + number * 60, 168, 50, 24, name, edge=edge, size=12)
    figure.line((530, 82), (612, 82), colour="good", arrow=True)
    figure.words(540, 72, "message", size=12, colour="good")
    figure.box(616, 60, 220, 44, "B holds: 3 of 5 nodes said so", edge="good", size=13)
    figure.words(
        616,
        132,
        "No request, no race, and no other",
        "waiter wakes up. B's hold counts",
        "from its latest request.",
        colour="muted",
        size=12,
    )
    figure.words(
        24,
        236,
        "Later waiters queue behind them. A waiter that is gone loses its place after 3 s.",
        colour="muted",
        size=13,
    )
    return figure


def slots() -> Figure:
    """Return why a semaphore has slots: three permits over AB, BC, CA."""
    figure = Figure(860, 270, "Two permits on three nodes: counters admit three owners, slots two")
    figure.words(24, 32, "Counters up to two: three get in", bold=True, size=16)
    figure.words(450, 32, "Two slots, each a lock: two get in", bold=True, size=16)
    counted = (("A", "C"), ("A", "B"), ("B", "C"))
    kept = (("A", "C"), ("A", "B"), ("C", "B"))
    colours: dict[str, Colour] = {"A": "accent", "B": "good", "C": "bad"}
    for column, name in ((158, "slot 0"), (238, "slot 1")):
        figure.words(450 + column - 24 + 35, 66, name, colour="muted", anchor="middle", size=12)
    for row in range(3):
        y = 78 + row * 44
        for left, table in ((24, counted), (450, kept)):
            figure.words(left, y + 20, f"node {row + 1}")
            for place, owner in enumerate(table[row]):
                lost = left > 24 and owner == "C"
                figure.box(left + 134 + place * 80, y, 70, 30, owner, edge=colours[owner], dashed=lost)
    figure.words(
        24,
        232,
        "A, B and C each have two of three nodes,",
        "so each believes it is in: one too many.",
        colour="bad",
        size=13,
    )
    figure.words(
        450,
        232,
        "C has slot 1 on one node, slot 0 on another:",
        "a quorum of neither. It releases both.",
        colour="good",
        size=13,
    )
    return figure


def architecture() -> Figure:
    """Return the four parts of the package."""
    figure = Figure(860, 326, "The four parts: facades, protocols, core vocabulary, drivers")
    figure.words(24, 32, "Four parts", bold=True, size=16)
    parts: list[tuple[str, str, str, Colour]] = [
        ("facades", "Lock, Semaphore, Client ...: the public API,", "once for threads, once for asyncio", "accent"),
        ("protocols", "every decision, as generators that yield effects:", "no clock, no socket, no thread", "good"),
        ("drivers", "perform the effects: in threads, in tasks,", "or in virtual time (the simulator)", "warn"),
        ("core", "the shared vocabulary: claims, holds, votes,", "timing, effects, scripts; pure arithmetic", "muted"),
    ]
    for number, (name, first, second, colour) in enumerate(parts):
        y = 54 + number * 66
        figure.box(24, y, 536, 50, colour="ground", edge=colour)
        figure.box(24, y, 130, 50, name, edge=colour)
        figure.words(176, y + 22, first, second, size=13)
    figure.box(600, 54, 236, 50, "your threads and tasks", colour="accent", word_colour="paper")
    figure.line((600, 79), (562, 79), colour="accent", arrow=True)
    figure.line((89, 104), (89, 118), arrow=True)
    figure.line((89, 170), (89, 184), arrow=True)
    figure.box(600, 186, 236, 50, "N independent servers", edge="warn")
    figure.line((560, 211), (598, 211), colour="warn", arrow=True)
    figure.words(600, 140, "effects down: ask, tell, wait", "replies up: votes, wake-ups", colour="muted", size=12)
    return figure


_QUESTIONS: Final = (
    ("Can the resource itself refuse a second worker?", "by a key, a version column or a queue", "no lock: use that"),
    ("Limit how many work at a time?", "at most n at once", "get_semaphore"),
    ("Limit how many start per second?", "at most n in any window of time", "get_rate_limiter"),
    ("Wait until n events have happened?", "a count that goes down to 0", "get_count_down_latch"),
    ("Do many read, and few write?", "and each reads for longer than a round", "get_read_write_lock"),
    ("Need several locks together?", "all or none, without deadlock", "get_multi_lock"),
    ("Would a late write do damage?", "and the resource can compare a number", "get_fenced_lock"),
    ("Must it be first come, first served?", "exactly, independent of clocks", "get_fair_lock"),
    ("Do other Redlock libraries share the lock?", "or does another thread release it?", "get_mutex"),
    ("Does the ACL forbid SUBSCRIBE?", "and the lock is rarely contended", "get_spin_lock"),
)
"""The questions in order: each with its meaning, and the synchronizer to use on yes."""


def choosing() -> Figure:
    """Return a row of questions that choose a synchronizer."""
    step = 58
    figure = Figure(860, 54 + step * len(_QUESTIONS) + 68, "Choosing a synchronizer: the first yes decides")
    figure.words(24, 32, "Ask in this order; the first yes decides", bold=True, size=16)
    for number, (question, meaning, taken) in enumerate(_QUESTIONS):
        top = 54 + number * step
        figure.box(40, top, 440, 44, edge="muted")
        figure.words(56, top + 19, question)
        figure.words(56, top + 36, meaning, colour="muted", size=12)
        figure.line((480, top + 22), (590, top + 22), colour="good", arrow=True)
        figure.words(535, top + 16, "yes", colour="good", anchor="middle", size=12)
        figure.box(590, top, 230, 44, taken, edge="good")
        figure.line((110, top + 44), (110, top + step), colour="muted", arrow=True)
        if number == 0:
            figure.words(120, top + 55, "no", colour="muted", size=11)
    figure.box(40, 54 + step * len(_QUESTIONS), 440, 44, "none of these: get_lock", edge="accent")
    return figure


FIGURES: Final[dict[str, Callable[[], Figure]]] = {
    "lease": lease,
    "quorum": quorum,
    "fencing": fencing,
    "restart": restart,
    "handover": handover,
    "slots": slots,
    "architecture": architecture,
    "choosing": choosing,
}


def main(*, check: bool) -> None:
    """Write all figures, or name the stale ones."""
    FOLDER.mkdir(exist_ok=True)
    old = []
    figures = {name: draw() for name, draw in FIGURES.items()} | plots(*rows_of(PUBLISHED.read_text(encoding="utf-8")))
    for name, figure in figures.items():
        file, text = FOLDER / f"{name}.svg", figure.svg()
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            old.append(file.name)
            if not check:
                file.write_text(text, encoding="utf-8")
    if check and old:
        sys.exit(f"stale figures, run `make docs`: {', '.join(old)}")


if __name__ == "__main__":
    main(check="--check" in sys.argv)
