"""The facades for threads are generated from those for asyncio: their code, but not their descriptions."""

from tools import twins

SOURCE = '''
class AsyncThing:
    """For tasks."""

    async def acquire(self, n: int = 1) -> AsyncHold:
        """Acquire it in this task. See `Thing.acquire`."""
        return AsyncHold(await self._runner.run(self._steps(n)))
'''

TARGET = '''
class Thing:
    """For threads."""

    kept = 1

    def acquire(self) -> None:
        """Acquire it in this thread."""
'''

MADE = '''
class Thing:
    """For threads."""

    kept = 1

    def acquire(self, n: int = 1) -> Hold:
        """Acquire it in this thread."""
        return Hold(self._runner.run(self._steps(n)))
'''


def test_check_finds_an_outdated_copy(monkeypatch, tmp_path, capsys):
    (tmp_path / "there.py").write_text(SOURCE)
    (tmp_path / "here.py").write_text(TARGET)
    monkeypatch.setattr(twins, "PACKAGE", tmp_path)
    monkeypatch.setattr(twins, "TWINS", [twins.Twin("there", "Thing", "here")])
    monkeypatch.setattr(twins, "formatted", lambda text, _: text)
    for arguments, status in (["--check"], 1), ([], 0), (["--check"], 0):
        monkeypatch.setattr("sys.argv", ["twins", *arguments])
        assert twins.main() == status
        assert ("make twins" in capsys.readouterr().err) is bool(status)
    assert (tmp_path / "here.py").read_text() == MADE
