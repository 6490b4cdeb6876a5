"""Reads a builder's plain output: which step runs, what it said, how long it took."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Progress", "Step"]

_TITLES: Final = (
    ("packages.sh", "packages that the base lacks"),
    ("uv.sh", "uv"),
    ("stack.sh", "environment from the lock"),
    ("tools.sh", "envspec and nox beside it"),
    ("self-check", "check against the lock"),
)
_KIT: Final = re.compile(r"#(\d+) (.*)")
_SAID: Final = re.compile(r"\d+\.\d+ ?(.*)")
_DONE: Final = re.compile(r"DONE ([\d.]+)s")
_BUILDAH: Final = re.compile(r"(?:\[\d+/\d+\] )?STEP \d+(?:/\d+)?: (.*)")


@dataclass
class Step:
    """One step of a build. ``title`` is None for one that is not worth a line."""

    command: str = ""
    lines: list[str] = field(default_factory=list)
    failed: bool = False

    @property
    def title(self) -> str | None:
        return next((title for mark, title in _TITLES if mark in self.command), None)


@dataclass
class Progress:
    """Fed with a builder's lines; ``tell`` gets one line for each step that ended."""

    tell: Callable[[str], None] = lambda text: None
    steps: dict[str, Step] = field(default_factory=dict)
    other: list[str] = field(default_factory=list)
    _current: str | None = None

    def feed(self, line: str) -> None:
        """One line of BuildKit's (``--progress plain``) or Buildah's output."""
        line = line.rstrip()
        kit, buildah = _KIT.match(line), _BUILDAH.match(line)
        if kit is not None:
            self._kit(self.steps.setdefault(kit[1], Step()), kit[2])
        elif buildah is not None:
            self._current = str(len(self.steps))
            self.steps[self._current] = Step(command=buildah[1])
            if self.steps[self._current].title:
                self.tell(f"{self.steps[self._current].title} ...")
        elif self._current is not None:
            self.steps[self._current].lines.append(line)
            self.other.append(line)
        elif line:
            self.other.append(line)

    def _kit(self, step: Step, text: str) -> None:
        done, said = _DONE.fullmatch(text), _SAID.fullmatch(text)
        if text.startswith("["):
            step.command = step.command or text
        elif text == "CACHED" or done is not None:
            if step.title:
                self.tell(f"{step.title}: {'as before' if done is None else f'{float(done[1]):.0f} s'}")
        elif text.startswith("ERROR"):
            step.failed = True
            step.lines.append(text)
        elif said is not None:
            step.lines.append(said[1])

    @property
    def failed(self) -> Step | None:
        """The step that failed, where the output tells."""
        marked = [step for step in self.steps.values() if step.failed]
        if marked:
            return marked[-1]
        return self.steps[self._current] if self._current is not None else None

    @property
    def text(self) -> str:
        """Everything that was said."""
        return "\n".join([*(line for step in self.steps.values() for line in step.lines), *self.other])
