"""Plan and answers of a probe as files, for servers that somebody else asks.

Plan: a JSON list of ``{id, sample, row, prompt_token_ids, max_tokens}``. Answers: a JSON list (or one object a line) of
``{id, first_token, accepted}``; ``id`` is ``SAMPLE:ROW``, so that answers can be read without their plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle3_diag.errors import InputError
from eagle3_diag.probe import Reply, Row, Table


def plan_text(rows: Sequence[Row], prompts: Mapping[str, Sequence[int]], max_tokens: int) -> str:
    """The plan as JSON, one request a line. ``prompts`` by row id."""
    lines = [
        json.dumps({"id": row.id, "sample": row.sample, "row": row.row, "prompt_token_ids": list(prompts[row.id]), "max_tokens": max_tokens})
        for row in rows
    ]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def answers_text(replies: Mapping[str, Reply]) -> str:
    """Answers as JSON, one a line."""
    lines = [json.dumps({"id": name, "first_token": reply.first_token, "accepted": reply.accepted}) for name, reply in replies.items()]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def read_answers(path: Path, table: Table) -> dict[str, Reply]:
    """Answers by row id; those with ``accepted`` null were not answered and are left out.

    Raises InputError: the file cannot be read, is not of this form, answers a row twice in two ways, or names rows that these samples have not.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"--answers {path}: cannot be read ({getattr(error, 'strerror', None) or error}); name the file with the answers") from None
    found: dict[str, Reply] = {}
    strangers = []
    for number, each in enumerate(_entries(text, path), 1):
        if not isinstance(each, Mapping) or not isinstance(each.get("id"), str):
            raise InputError(f"--answers {path}: entry {number} is {json.dumps(each)[:80]}, expected an object with id, first_token and accepted")
        name = each["id"]
        if each.get("accepted") is None:
            continue
        reply = Reply(first_token=_integer(each.get("first_token"), "first_token", path, name, None), accepted=_accepted(each["accepted"], table, path, name))
        if found.setdefault(name, reply) != reply:
            raise InputError(f"--answers {path}: {name} is answered twice, with {found[name].accepted} and {reply.accepted} accepted; keep one")
        if name not in table.index:
            strangers.append(name)
    if strangers:
        raise InputError(
            f"--answers {path}: {len(strangers)} rows are not among the usable ones of these samples (first: {strangers[0]}); give the samples that the plan was made from"
        )
    if not found:
        raise InputError(f"--answers {path}: holds no answer; send the requests of the plan, and write what came back")
    return found


def _entries(text: str, path: Path) -> list[Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        try:
            data = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            raise InputError(f"--answers {path}: is not valid JSON; it is cut short or damaged, so write it again") from None
    if isinstance(data, Mapping):
        data = [data]
    if not isinstance(data, list):
        raise InputError(f"--answers {path}: holds a JSON {type(data).__name__}, expected a list of {{id, first_token, accepted}}")
    return data


def _integer(value: Any, what: str, path: Path, name: str, default: int | None) -> int | None:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"--answers {path}: {what} of {name} is {value!r}, expected a token id")
    return value


def _accepted(value: Any, table: Table, path: Path, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= table.steps:
        raise InputError(f"--answers {path}: accepted of {name} is {value!r}, expected 0 to {table.steps} (--steps)")
    return value
