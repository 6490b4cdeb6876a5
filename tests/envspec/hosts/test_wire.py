"""The frame, and the exchange with a command."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.errors import CaptureError
from envspec.hosts import wire
from envspec.hosts.kubernetes import KubernetesHost
from envspec.hosts.local import LocalHost

ECHO = "def main(request):\n    return request\n"


def run(payload: bytes, python: str = sys.executable) -> bytes:
    return subprocess.run([python, *wire.FLAGS, "-"], input=payload, capture_output=True, check=False).stdout


def test_a_request_comes_back_whole() -> None:
    token = wire.new_token()
    request = {"text": "ä\0\x1e\n" * 1000, "list": [None, True, 1.5]}
    frame = wire.find_frame(b"noise\x1eenvspec:" + run(wire.encode(ECHO, request, token)), token)
    assert frame is not None
    assert wire.read_answer(frame) == request
    assert frame.noise.startswith(b"noise")


def test_what_is_sent_does_not_hold_the_mark() -> None:
    token = wire.new_token()
    sent = wire.encode(ECHO, None, token)
    assert wire.find_frame(sent + sent, token) is None


@given(cut=st.integers(0, 400), noise=st.binary(max_size=50), seed=st.integers(0, 255))
def test_a_cut_or_damaged_frame_is_never_an_answer(cut: int, noise: bytes, seed: int) -> None:
    token = "t" * 32
    whole = b"\x1eenvspec:" + token.encode() + b":12:00000000\n" + bytes([seed]) * 12 + b"\n\x1eenvspec:" + token.encode() + b":end\n"
    frame = wire.find_frame(noise + whole[:cut], token)
    if frame is not None:
        with pytest.raises(wire.FrameError):
            wire.read_answer(frame)


def test_a_frame_of_another_run_is_not_taken() -> None:
    other = run(wire.encode(ECHO, "forged", wire.new_token()))
    assert wire.find_frame(other, wire.new_token()) is None


def test_too_old_interpreters_answer() -> None:
    found = [path for version in ("2.7", "3.6", "3.7") for path in Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    if not found:
        pytest.skip("no interpreter older than 3.8 below ~/.pyenv")
    for path in found:
        token = wire.new_token()
        frame = wire.find_frame(run(wire.encode(ECHO, None, token), str(path)), token)
        assert frame is not None
        assert frame.too_old is not None
        assert "3.8 or newer is needed" in frame.too_old


@pytest.mark.parametrize("text", ["a\x1b[31mred\x1b[0m", "a\x1b]0;title\x07red", "a\x9b31mred", "ared\r\n", "a\u202ered", "a\x00red"])
def test_foreign_text_cannot_drive_the_terminal(text: str) -> None:
    out = wire.clean(text)
    assert out.isprintable()
    assert "red" in out


def test_long_foreign_text_is_cut() -> None:
    assert len(wire.clean("x" * 1000)) == 300


def fake(folder: Path, text: str) -> str:
    path = folder / "fake python"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_a_command_that_prints_forever_or_hangs_is_ended(tmp_path: Path) -> None:
    for text in ("exec sleep 60\n", "trap '' TERM; sleep 60 & wait\n", "yes\n"):
        start = time.monotonic()
        with pytest.raises(CaptureError, match=r"no answer within 0.5 s|it printed more"):
            LocalHost("t", fake(tmp_path, text)).run_python(ECHO, None, 0.5)
        assert time.monotonic() - start < 30


def test_an_answer_counts_although_the_command_does_not_end(tmp_path: Path) -> None:
    python = fake(tmp_path, f"{sys.executable} \"$@\"\nexec sleep 60\n")
    assert LocalHost("t", python).run_python(ECHO, 7, 30) == 7


def test_noise_around_the_answer(tmp_path: Path) -> None:
    python = fake(tmp_path, f"printf 'before\\036envspec:'; echo err >&2; {sys.executable} \"$@\"; echo after\n")
    assert LocalHost("t", python).run_python(ECHO, [1], 30) == [1]


def test_pods_go_through_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\necho "$@" > ' + str(tmp_path / "said") + '\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    kubectl.chmod(0o755)
    monkeypatch.setenv("ENVSPEC_KUBECTL", f"{kubectl} --context dev")
    assert KubernetesHost("p", "ml", "train-0", "main", python=sys.executable).run_python(ECHO, 3, 30) == 3
    assert (tmp_path / "said").read_text().startswith("--context dev exec -i -n ml train-0 -c main -- sh -c ")
    with pytest.raises(CaptureError, match="no python at /nowhere"):
        KubernetesHost("p", "ml", "train-0", python="/nowhere").run_python(ECHO, 3, 30)
    monkeypatch.setenv("ENVSPEC_KUBECTL", str(tmp_path / "absent"))
    with pytest.raises(CaptureError, match="cannot be started"):
        KubernetesHost("p", "ml", "train-0").run_python(ECHO, 3, 30)
