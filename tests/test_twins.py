"""The facades for threads are generated from those for asyncio: their code, but not their descriptions."""

from tools import twins

SOURCE = '''
class AsyncThing:
    """For tasks."""

    async def acquire(self, n: int = 1) -> AsyncHold:
        """Acquire it in this task. See `Thing.acquire`."""
        # Nothing else awaits.
        return AsyncHold(await self._runner.run(self._steps(n)))

    async def release(self) -> None:
        """Release it."""
        await self._runner.run(self._release_steps())

    async def __aenter__(self) -> Self:
        return self

    def _cancel(self) -> None:
        pass
'''

TARGET = '''
class Thing:
    """For threads."""

    kept = 1

    def acquire(self) -> None:
        """Acquire it in this thread.

        Raises:
            ValueError: `n` is not a number.
        """

    def by_hand(self) -> None:
        """Stays."""

    def release(self) -> None: ...

    def __enter__(self) -> None: ...
'''

MADE = '''
class Thing:
    """For threads."""

    kept = 1

    def acquire(self, n: int = 1) -> Hold:
        """Acquire it in this thread.

        Raises:
            ValueError: `n` is not a number.
        """
        # Nothing else awaits.
        return Hold(self._runner.run(self._steps(n)))

    def by_hand(self) -> None:
        """Stays."""

    def release(self) -> None:
        """Release it."""
        self._runner.give_back(self._release_steps())

    def __enter__(self) -> Self:
        return self
'''

THING = twins.Twin("there", "Thing", "here", frozenset({"_cancel"}))


def test_check_finds_an_outdated_copy(monkeypatch, tmp_path, capsys):
    (tmp_path / "there.py").write_text(SOURCE)
    (tmp_path / "here.py").write_text(TARGET)
    monkeypatch.setattr(twins, "PACKAGE", tmp_path)
    monkeypatch.setattr(twins, "TWINS", [THING])
    monkeypatch.setattr(twins, "formatted", lambda text, _: text)
    monkeypatch.setattr("sys.argv", ["twins", "--check"])
    assert twins.main() == 1
    assert "make twins" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["twins"])
    assert twins.main() == 0
    assert (tmp_path / "here.py").read_text() == MADE
    monkeypatch.setattr("sys.argv", ["twins", "--check"])
    assert twins.main() == 0
