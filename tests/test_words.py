"""Banned phrases: found wherever people read them, except in allowed places."""

import pytest

from tools import words


def found(text):
    return [(line, phrase) for line, phrase, _ in words.found(text)]


@pytest.mark.parametrize(
    ("text", "line", "phrase"),
    [
        ("It ends.\nIt waits for so many seconds.\n", 2, "so many"),
        ("So many words.", 1, "so many"),
        ("It waits for so\nmany seconds.", 1, "so many"),
        ("    # It waits for so\n    # many seconds.", 1, "so # many"),
        ("-- It waits for so\n-- many seconds.", 1, "so -- many"),
        ('def f():\n    """Wait.\n\n    It waits for so\n    many seconds.\n    """', 4, "so many"),
        ('x = 1\n"""What it costs."""', 2, "what it costs."),
        ('"""A hold.\n\nWhoever waits gets it. Who waits longest is first."""', 3, "whoever"),
        ("x = 1  # fine\n# Who waits longest is first.", 2, "who waits longest is first."),
        ("The wait goes on.", 1, "goes on"),
        ("    Args:\n        n: How many there are.", 2, "how many there are."),
    ],
)
def test_phrase_is_found(text, line, phrase):
    assert (line, phrase) in found(text)


@pytest.mark.parametrize(
    "text",
    ["That many.", "So, many wait.", "# Who is first?", '"""Where it is known what it costs."""', "also_if", "thwart"],
)
def test_other_words_are_not_found(text):
    assert found(text) == []


def test_program_prints_what_it_finds(monkeypatch, tmp_path, capsys):
    (tmp_path / "a.md").write_text("One.\nSo many more.\n")
    (tmp_path / "b.md").write_text("So many more.\n")
    monkeypatch.setattr(words, "ROOT", tmp_path)
    monkeypatch.setattr(words, "files", lambda _: sorted(tmp_path.iterdir()))
    monkeypatch.setattr(words, "ALLOWED", {("b.md", "so many"): "quoted"})
    assert words.main() == 1
    assert capsys.readouterr().out == "a.md:2: so many: 'n', 'that many', 'a number of'\n"
