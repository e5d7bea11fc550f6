"""Virtual time: the order of future events, and clocks that go wrong."""

from redsync.testing.simulator.timeline import Clock, Timeline


def test_entries_of_one_instant_keep_their_order():
    timeline = Timeline()
    for word in "abc":
        timeline.schedule(1.0, None, word)
    timeline.schedule(0.5, None, "first")
    assert [entry[3] for entry in sorted(timeline.entries)] == ["first", "a", "b", "c"]


def test_past_instants_are_due_now():
    timeline = Timeline()
    timeline.now = 2.0
    timeline.schedule(1.0, None, print)
    assert timeline.entries[0][0] == 2.0


def test_clock_runs_at_its_rate_from_each_change_on():
    timeline = Timeline()
    clock = Clock(timeline, start=100.0, rate=2.0)
    timeline.now = 5.0
    assert clock.now() == 110.0
    clock.change(rate=0.5, jump=-3.0)
    timeline.now = 7.0
    assert clock.now() == 108.0


def test_clock_never_shows_less_at_the_instant_that_it_names():
    timeline = Timeline()
    clock = Clock(timeline, start=1234.5, rate=1.0 / 3.0)
    timeline.now = 0.1
    for step in range(1000):
        local = clock.now() + step * 0.0137
        before, timeline.now = timeline.now, clock.instant(local)
        assert clock.now() >= local
        timeline.now = before
