"""`redsync break`: force-releases one owner's claim, on all nodes."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

from redsync.cli.arguments import encoded
from redsync.cli.asking import Nodes, execute, look_at, questions
from redsync.cli.exits import BROKEN, FINE, USAGE, SetupError
from redsync.cli.output import prompt, put, shown, warn, write_json
from redsync.cli.writing import complain, who

__all__ = ["take_away"]


def take_away(options: Any) -> int:
    """Force-release one owner's claim, on all nodes."""
    name = encoded(options.name)
    with Nodes.chosen(options) as nodes:
        asked = questions(nodes.prefix, [name], most=10_000)
        answers = nodes.ask(lambda client: look_at(client, asked).get(name))
        held = [
            (look.kind, claim)
            for answer in answers
            for look in [answer.value]
            if look
            for claim in look.claims
            if claim.owner == options.owner
        ]
        if not held:
            complain(answers)
            warn(f"{options.owner} does not hold '{shown(options.name)}' on any node that answered")
            return nodes.status(answers) or BROKEN
        kind, claim = next((each for each in held if each[1].client), held[0])
        if not options.yes:
            _confirm(f"Release the {kind} '{shown(options.name)}' held by {who(options.owner, claim.client)}?")
        return _execute(nodes, options, name, kind, {claim.raw for _, claim in held})


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise SetupError("can't ask for confirmation, as standard input is not a terminal: pass --yes", USAGE)
    prompt(question, "It may still be at work until its next renewal or release. [y/N]")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise SetupError("nothing was changed", BROKEN)


def _execute(nodes: Nodes, options: Any, name: bytes, kind: str, claims: Collection[bytes]) -> int:
    from redsync._protocols.name_survey import break_commands

    commands = [each for claim in sorted(claims) for each in break_commands(nodes.prefix, name, kind, claim)]
    answers = nodes.ask(lambda client: 1 in execute(client, commands))
    broken = sum(answer.value is True for answer in answers)
    if options.json:
        nodes_json = [
            {"node": answer.node, "error": answer.error, "broken": answer.value is True} for answer in answers
        ]
        write_json({"name": options.name, "owner": options.owner, "kind": kind, "nodes": nodes_json})
    else:
        put(f"released on {broken} of {len(answers)} nodes")
    complain(answers)
    return nodes.status(answers) or (FINE if broken else BROKEN)
