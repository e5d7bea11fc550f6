"""Find phrases that make readers read twice: `python tools/words.py [PATH ...]`; exit status 1 if there are any.

It searches all text that people read: pages, docstrings, comments, messages, scripts. A phrase may continue on the next
line. `BANNED` says what to write instead; `ALLOWED` lists the exceptions, each with its reason.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

BARE: Final = r'(?:"""|[.:;!?]\s|^\s*(?:#|--) ?)\s*((?:Who|What|Whether)\s[^?"\n]*?\.(?=\s|$|"))'
"""A sentence that begins with a bare "Who", "What" or "Whether", within one line, and is not a question."""

ARGUMENT: Final = r"^ {4,}[*\w]+: ((?:What|When|How long|How many)\s[^\n]*)"
"""The description of an argument or attribute that is a question instead of a noun phrase."""

BANNED: Final = {
    r"\bwhoever\b": "name the actor: 'the client that ...', 'a waiter'",
    r"\b(?:nobody|somebody|anybody|everybody)\b": "the noun: 'no owner', 'another client', 'any waiter', 'all nodes'",
    r"\bwho (?:waits|asks|finds|takes|only|holds(?! (?:it|what)\b))\b": "'a waiter', 'an owner that ...'",
    r"\bso many\b": "'n', 'that many', 'a number of'",
    r"\balso if\b": "'even if'",
    r"\b(?:is|are|be|was|were) told (?:of|about|that|when|whether)\b": "'learns', 'gets an error'",
    r"\b(?:take|takes|took|taken|taking) note of\b": "'record'",
    r"\bin the place of\b": "'instead of'",
    r"\bin its place\b": "'instead'",
    r"\bin vain\b": "say what failed",
    r"\bfor good\b": "'permanently'",
    r"\bas it were\b": "nothing",
    r"\bat a glance\b": "say the mechanism",
    r"\bnothing must\b": "'no ... is needed', 'must not'",
    r"\bneed not be\b": "'does not have to be'",
    r"\bis no (?:url|address|name|number|valid|lock|error|such|hold|permit|owner|key|string|int)\b": "'is not a ...'",
    r"\b(?<!there\s)(?:is|are) no (?:quorum|success|loss|danger|violations?|votes|outage)\b": "'not a'",
    r"\bmust be quick\b": "say what a slow call delays",
    r"\bsaves nothing\b": "'is pointless'",
    r"\bhand(?:s|ed|ing)? on\b": "'pass on'",
    r"\bbe it\b": "'whether it is'",
    r"\bat last\b": "'finally', 'eventually'",
    r"\bshall\b": "'must', 'should', 'may'",
    r"\banew\b": "'again', 'a new ...'",
    r"\bheed(?:s|ed|ing)?\b": "'obey', 'take into account'",
    r"\b(?:give|gives|gave|given|giving) (?:it |them |one |that |this |all )?back\b": "'release', 'return'",
    r"\b(?:forsake|forsakes|forsaken|christen|christens|deafen|deafens|parcel|census|herald)\b": "see docs/glossary.md",
    r"\b(?:spurned|farewell|surroundings|dialects?|happenings?)\b": "see docs/glossary.md",
    r"\bthat of the \[": "'The [lock's guarantee]'",
    r"\bnot to be had\b": "'not available'",
    r"\bstands? still\b": "'is paused'",
    r"\bgoes? on to be\b": "name the actor",
    r"\bis said, not\b": "'it says so'",
    r"\bby (?:what|whom|which) (?:it|they) (?:has|have)\b": "name it",
    r"\bafter how many seconds\b": "'how long'",
    r"\bbeliev(?:e|es|ed) to (?:be|have|hold|read|write)\b": "'believes that it holds'",
    r"\b(?:stood|standing) still\b": "'was paused'",
    r"\b(?:can't|cannot|could not) be had\b": "'can't be acquired'",
    r"\bfor ever\b": "'forever', 'without limit'",
    r"\ball the same\b": "'still'",
    r"\bof redis-py's\b": "'redis-py ...'",
    r"\bof (?:its|their|our|your|one's|his) own(?=[^\w\s]| (?:and|as|but|has|if|is|or|that|which|with)\b)": "'its own'",
    r"\bsome \d": "'about'",
    r"\b(?:is|are|was|were) told\b": "'learns', 'is reported'",
    r"\blearnt\b": "'learned'",
    r"\bis answered by\b": "'the reply to ... is'",
    r"\bis said\b": "'the page says'",
    r"\bhave in common\b": "'share'",
    r"\bfights? over\b": "'compete for'",
    r"\bas it was given\b": "'as given'",
    r"\b(?:go|goes|gone|went) on\b": "'continue'",
    r"\bwork(?:s|ed|ing)? off\b": "'process'",
    r"\bwhat becomes? of\b": "name the result",
    r"\bhence\b": "'so'",
    r"\b(?:is|are|was|were) waited for\b": "'the caller waits for ...'",
    r"\b(?:is|are|was|were) put off\b": "'is delayed'",
    r"\b(?:cancellation|error|exception|interruption) (?:comes?|came) out\b": "'propagates', 'is raised'",
    r"\b(?:ends?|expires?|recovers?|reconnects?) by itself\b": "'automatically'",
    r"\bbeside (?:it|them|a|an|the|other|others|another)\b": "'next to', 'alongside', 'versus'",
}
"""Patterns in lower case, and what to write instead; a space matches any white space."""

ALLOWED: Final[dict[tuple[str, str], str]] = {
    ("tools/words.py", ""): "names the phrases",
    ("tests/test_words.py", ""): "names the phrases",
    ("docs/changelog.md", ""): "includes CHANGELOG.md",
    ("redsync/cli/listing.py", "nobody"): "printed in the column HELD BY",
    ("docs/operate/runbooks.md", "nobody"): "quotes that column",
    ("tests/simulation/*.py", "nobody"): "grammar of scenarios",
    ("tests/scenarios/*.txt", "nobody"): "grammar of scenarios",
    ("tests/*.py", "everybody"): "name of a function",
    ("tests/scenarios/*.txt", "is told"): "grammar of scenarios",
    ("tests/simulation/scenario.py", "is told"): "grammar of scenarios",
    ("docs/index.md", "who holds"): "a question",
    ("docs/questions.md", "who holds"): "a question",
    ("tests/simulation/scenario.py", "who waits"): "grammar of scenarios",
    ("tests/simulation/*.py", "deafen"): "name of a method",
    ("redsync/_protocols/*ing.py", "given back"): "value of an attribute",
}
"""Exceptions: the files, as a pattern, and a part of the phrase in lower case; an empty part allows all phrases."""

_READ: Final = (".md", ".py", ".lua", ".toml", ".yml", ".txt", "Makefile", "run")

_SPACE = r"(?:\s|\n\s*(?:#|--))+"
_PHRASES = [(re.compile(phrase.replace(" ", _SPACE)), instead) for phrase, instead in BANNED.items()]
_ANY = re.compile(r"\b(?:" + "|".join(phrase.removeprefix(r"\b") for phrase in BANNED).replace(" ", _SPACE) + ")")
_SENTENCES = re.compile(BARE, re.MULTILINE)
_ARGUMENTS = re.compile(ARGUMENT, re.MULTILINE)


def files(arguments: list[str]) -> Iterator[Path]:
    """Yield the files that people read, in the given paths or in the whole repository."""
    listed = subprocess.run(
        ["/usr/bin/env", "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *arguments],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    yield from (ROOT / name for name in listed.split("\0") if name.endswith(_READ) and (ROOT / name).is_file())


def found(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line of each banned phrase, the phrase in lower case, and what to write instead."""
    lower = text.lower()  # twenty times faster than to ignore case
    for match in _ANY.finditer(lower):
        instead = next(instead for phrase, instead in _PHRASES if phrase.match(lower, match.start()))
        yield text.count("\n", 0, match.start()) + 1, " ".join(match[0].split()), instead
    for match in _SENTENCES.finditer(text):
        yield text.count("\n", 0, match.start(1)) + 1, match[1].lower(), "name the thing: 'A queued waiter ...'"
    for match in _ARGUMENTS.finditer(text):
        yield text.count("\n", 0, match.start(1)) + 1, match[1].lower(), "a noun phrase: 'The number of ...'"


def is_allowed(file: str, phrase: str) -> bool:
    """Return whether `ALLOWED` lists a phrase that was found in a file."""
    return any(fnmatch(file, where) and part in phrase for where, part in ALLOWED)


def main() -> int:
    """Print all banned phrases; return the exit status."""
    bad = 0
    for file in files(sys.argv[1:]):
        name = str(file.relative_to(ROOT))
        for line, phrase, instead in sorted(found(file.read_text())):
            if not is_allowed(name, phrase):
                bad += 1
                print(f"{name}:{line}: {phrase[:90]}: {instead}")  # noqa: T201
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
