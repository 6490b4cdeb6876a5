"""The progress bar: silent where nobody looks, honest about what is left."""

from __future__ import annotations

import io
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from eagle3_diag.progress import Progress, count_files, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_silent_when_not_a_terminal_or_quiet() -> None:
    for stream, quiet in ((io.StringIO(), False), (Terminal(), True)):
        with Progress("evaluating", unit="rows", quiet=quiet, stream=stream) as progress:
            progress.expect(10)
            progress.update(100)
        assert stream.getvalue() == ""
        assert not progress.shown


def test_shows_share_rate_and_remaining_time_and_leaves_a_clean_line() -> None:
    stream, clock = Terminal(), Clock()
    with Progress("evaluating", unit="rows", stream=stream, clock=clock) as progress:
        progress.expect(4)
        for done in (1, 2):
            clock.now = done * 10.0
            progress.update(done * 500)
        assert progress.line(79) == "evaluating  50% [##############             ] 2/4 samples  50 rows/s  20 s left"
    assert stream.getvalue().endswith("\r\x1b[K")
    assert "\n" not in stream.getvalue()


def test_without_a_known_end_it_shows_what_is_done() -> None:
    clock = Clock()
    progress = Progress("evaluating", unit="rows", stream=Terminal(), clock=clock)
    clock.now = 90.0
    progress.update(900)
    assert progress.line(79) == "evaluating  1 samples  10 rows/s  1:30 elapsed"


def test_redraws_at_most_ten_times_a_second() -> None:
    stream, clock = Terminal(), Clock()
    with Progress("evaluating", unit="rows", stream=stream, clock=clock) as progress:
        for i in range(1000):
            clock.now += 0.001
            progress.update(i)
    assert len(re.findall(r"\r", stream.getvalue())) <= 13


def test_a_terminal_that_goes_away_does_not_stop_the_work() -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with Progress("evaluating", unit="rows", stream=Gone()) as progress:
        progress.update(1)


@given(st.integers(0, 500), st.integers(0, 10**9), st.one_of(st.none(), st.integers(0, 10**6)), st.one_of(st.none(), st.integers(1, 10**9)), st.floats(0, 1e7))
def test_never_wider_than_the_terminal(width: int, rows: int, samples: int | None, most_rows: int | None, elapsed: float) -> None:
    clock = Clock()
    progress = Progress("evaluating", unit="rows", stream=Terminal(), clock=clock)
    progress.expect(samples, most_rows)
    clock.now = elapsed
    progress.update(rows)
    assert len(progress.line(width)) <= width


def test_durations() -> None:
    assert [duration(s) for s in (0.4, 59, 60, 3599, 7500)] == ["0 s", "59 s", "1:00", "59:59", "2:05:00"]


def test_counts_sample_files_without_following_loops(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    for name in ("data_0.pt", "rows/data_1.ckpt.gz", "rows/hs_2.safetensors", "notes.txt", ".hidden.pt"):
        (tmp_path / name).touch()
    (tmp_path / "rows" / "loop").symlink_to(tmp_path)
    assert count_files([tmp_path]) == 3
    assert count_files([tmp_path], limit=2) == 2
    assert count_files([tmp_path / "data_0.pt", tmp_path / "missing"]) == 2
