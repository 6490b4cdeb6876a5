"""The imports that a stack promises, in an image."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.envspec.engine import PREFIX, containers_of
from tests.envspec.images.conftest import STACK, Pair, Workshop
from tests.envspec.images.test_verify import run

pytestmark = pytest.mark.docker


def test_what_is_listed_is_imported_and_what_needs_the_driver_is_skipped_with_the_reason(workshop: Workshop, pair: Pair) -> None:
    before = containers_of(workshop.client, pair.train) | containers_of(workshop.client, pair.infer)
    outcome = run("smoke", "--json", "--gpus", "none", pair.train, pair.infer)
    assert outcome.code == 0, outcome.out
    report = outcome.report
    assert report.command == "images smoke"
    assert [host.summary.split(" in ")[0] for host in report.hosts if host.summary] == ["2 imported, 1 skipped"] * 2
    reason = "needs_gpu was skipped: it needs the driver's libcuda.so.1, which the container does not have"
    assert report.notes == (f"{pair.train}: {reason}", f"{pair.infer}: {reason}")
    assert containers_of(workshop.client, pair.train) | containers_of(workshop.client, pair.infer) <= before


def test_an_import_that_fails_hangs_or_dies_is_a_finding_with_pythons_own_words(workshop: Workshop, pair: Pair, tmp_path: Path) -> None:
    site = workshop.site
    image = workshop.commit(
        pair.infer,
        {
            f"{site}/hangs.py": b"import time\ntime.sleep(600)\n",
            f"{site}/dies.py": b"import os\nos._exit(7)\n",
            f"{site}/needs_cuda.py": b"import ctypes\nctypes.CDLL('libcuda.so.1')\n",
            f"{site}/writes.py": b"open('/opt/env/x', 'w')\n",
            f"{site}/calls.py": b"import socket\nsocket.create_connection(('192.0.2.1', 80), 5)\n",
        },
        f"{PREFIX}-smoke",
    )
    stack = tmp_path / "stack.yaml"
    listed = ("hangs", "dies", "needs_cuda", "writes", "calls", "alpha.nothing", "alpha")
    stack.write_bytes(STACK[: STACK.index(b"smoke:")] + b"smoke: [" + ", ".join(listed).encode() + b"]\n")
    outcome = run("smoke", "--json", "--gpus", "none", "--stack", str(stack), "--timeout", "3", image)
    assert outcome.code == 1
    said = {item.subject: item.what.partition(": ")[2] for item in outcome.report.findings}
    assert {item.code for item in outcome.report.findings} == {"EP828"}
    assert said.keys() == set(listed) - {"alpha"}
    assert said["hangs"] == "no end within 3 s"
    assert said["dies"] == "Python ended with exit code 7"
    assert said["needs_cuda"].startswith("OSError: libcuda.so.1: cannot open shared object file")
    assert said["writes"].startswith("OSError: [Errno 30] Read-only file system")
    assert said["calls"] == "OSError: [Errno 101] Network is unreachable"
    assert said["alpha.nothing"] == "ModuleNotFoundError: No module named 'alpha.nothing'"
    (fix,) = [item.fix for item in outcome.report.findings if item.subject == "needs_cuda"]
    assert "needs: driver" in fix


def test_an_image_without_a_list_is_one_sentence(workshop: Workshop, pair: Pair, tmp_path: Path) -> None:
    for words, code, message in (
        ((workshop.base,), 2, f"{workshop.base} holds no /etc/envspec/stack.yaml; name the stack's with --stack FILE"),
        ((pair.train, "--stack", str(tmp_path / "no.yaml")), 2, "cannot read the stack"),
        ((pair.train, "--timeout", "0"), 2, "at least 1"),
        (("envspec-no-such",), 3, "No such image"),
    ):
        outcome = run("smoke", *words)
        assert (outcome.code, outcome.out) == (code, "")
        assert message in outcome.err
        assert outcome.err.count("\n") == 1
