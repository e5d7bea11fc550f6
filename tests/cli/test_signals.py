"""Sleeps of commands: a signal ends them, no matter when it arrives."""

import os
import signal
import time

import pytest

from redsync.cli.signals import light_sleep


@pytest.fixture
def handled():
    """A signal whose handler does nothing."""
    former = signal.signal(signal.SIGUSR1, lambda *_: None)
    yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, former)


@pytest.mark.timeout(20)
def test_signal_before_the_sleep_ends_it(handled):
    """So does a signal between Python's check for signals and the system call."""
    with light_sleep() as sleep:
        handled()
        sleep(60)


def test_signal_ends_one_sleep_only(handled):
    with light_sleep() as sleep:
        handled()
        sleep(60)
        begun_at = time.monotonic()
        sleep(0.05)
        assert time.monotonic() - begun_at >= 0.05


@pytest.mark.timeout(20)
def test_sleep_ends_when_a_file_is_readable():
    reader, writer = os.pipe()
    os.write(writer, b"x")
    with light_sleep() as sleep:
        sleep(60, reader)
    os.close(reader)
    os.close(writer)


def test_sleep_raises_the_handlers_error():
    with pytest.raises(KeyboardInterrupt), light_sleep() as sleep:  # noqa: PT012  (either line may raise)
        os.kill(os.getpid(), signal.SIGINT)
        sleep(60)


def test_sleep_leaves_nothing_behind(handled):
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    with light_sleep() as sleep:
        sleep(0)
    assert signal.set_wakeup_fd(-1) == -1
    if before is not None:
        assert set(os.listdir("/proc/self/fd")) == before
