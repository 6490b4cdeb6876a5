"""What a target shall answer: prompts out of a file, as text, chat messages or token ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_diag.errors import InputError

#: Endings of files with one JSON object per line; every other file has one prompt of plain text per line.
JSON_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt: exactly one of ``text``, ``messages`` (``{"role": …, "content": …}``) and ``token_ids`` is set. ``where`` names file and line."""

    where: str
    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    token_ids: tuple[int, ...] | None = None


def read_prompts(path: Path) -> list[Prompt]:
    """Every prompt of a file, in order; empty lines are passed over.

    Raises InputError with file and line for whatever is no prompt.
    """
    try:
        content = path.read_text("utf-8")
    except OSError as error:
        raise InputError(f"{path}: the prompts cannot be read ({error.strerror}); name a text or JSON Lines file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: the prompts are not UTF-8 text; save the file as UTF-8") from None
    as_json = path.suffix.lower() in JSON_LINES
    lines = content.split("\n") if as_json else content.splitlines()
    prompts = [_parse(f"{path}, line {i}", line, as_json) for i, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise InputError(f"{path}: holds no prompt; write one per line")
    return prompts


def _parse(where: str, line: str, as_json: bool) -> Prompt:
    if not as_json:
        return Prompt(where=where, text=line)
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where}: is no JSON ({error}); write one object per line") from None
    if not isinstance(entry, dict):
        raise InputError(f"{where}: is no object; write {{\"prompt\": …}}, {{\"messages\": …}} or {{\"prompt_token_ids\": …}}")
    given = [key for key in ("prompt", "messages", "prompt_token_ids") if entry.get(key) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise InputError(f"{where}: has {found}; give one of prompt, messages and prompt_token_ids")
    value = entry[given[0]]
    if given[0] == "prompt":
        if not isinstance(value, str) or not value:
            raise InputError(f"{where}: prompt is no text; write a string that is not empty")
        return Prompt(where=where, text=value)
    if given[0] == "prompt_token_ids":
        if not isinstance(value, list) or not value or not all(type(item) is int and item >= 0 for item in value):
            raise InputError(f"{where}: prompt_token_ids is no list of token ids; write integers from 0 on")
        return Prompt(where=where, token_ids=tuple(value))
    return Prompt(where=where, messages=_messages(where, value))


def _messages(where: str, value: Any) -> tuple[Mapping[str, Any], ...]:
    good = isinstance(value, list) and value and all(isinstance(each, dict) and isinstance(each.get("role"), str) and "content" in each for each in value)
    if not good:
        raise InputError(f"{where}: messages is no list of messages; write [{{\"role\": \"user\", \"content\": …}}, …]")
    if value[-1]["role"] == "assistant":
        raise InputError(f"{where}: the last message is the assistant's, which the target is to write; leave it out")
    return tuple(value)
