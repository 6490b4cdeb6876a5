"""The processes that the probe forks for its longest sections: the same answer with them, without them, and when they fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envspec import probe
from tests.envspec.build import bare_venv, elf, install

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

RUN = """
import json, os, sys
source, before, request, out = sys.argv[1:]
os.sched_getaffinity = lambda _: set(range(4))
space = {"__name__": "envspec_remote"}
exec(compile(open(source).read(), "probe", "exec"), space)
exec(before, space)
document = space["main"](json.loads(request))
document.pop("capture")
with open(out, "w") as file:
    json.dump(document, file)
os._exit(0)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment of 60 distributions: some have extensions, some share files, one is damaged, one is twice there."""
    folder = tmp_path_factory.mktemp("many") / "env"
    site = bare_venv(folder)
    module = elf(needed=["libz.so.1", "libnowhere.so.9"], versions={"libc.so.6": ["GLIBC_2.34"]})
    for number in range(60):
        name = f"package{number:02}"
        files = {f"{name}/__init__.py": b"", f"{name}/part.py": b"x = 1\n"}
        if number % 2:
            files[f"{name}/fast.so"] = module if number % 4 == 1 else b"\x7fELF not really"
        if number % 7 == 0:
            files["tests/__init__.py"] = b""
        install(site, name, f"1.{number}", files, requires=("package01>=2",) if number == 5 else ())
    (site / "package03-1.3.dist-info" / "RECORD").write_bytes(b'"never closed,,\n\0\n')
    install(site, "package04", "0.9", {"package04/old.py": b""})
    (site / "~ackage09-1.0.dist-info").mkdir()
    return folder / "bin/python"


def document(environment: Path, tmp_path: Path, before: str = "", alone: bool = True, **request: object) -> dict[str, object]:
    """What the probe answers in a process of its own, in which ``before`` runs first, on a machine of four processors."""
    out = tmp_path / "out.json"
    asked = json.dumps({"alone": alone, **request})
    command = [str(environment), "-E", "-s", "-S", "-B", "-c", RUN, probe.__file__, before, asked, str(out)]
    subprocess.run(command, check=True, timeout=60, cwd=tmp_path)
    answer: dict[str, object] = json.loads(out.read_text())
    return answer


COUNT = """
forked = []
_fork = os.fork
def fork():
    pid = _fork()
    if pid:
        forked.append(pid)
    return pid
os.fork = fork
import atexit
_close = Helpers.close
def close(self):
    assert len(self.every) == len(self.idle) == len(forked) == {expected}, (self.every, self.idle, forked)
    _close(self)
    for pid in forked:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        raise AssertionError("a helper is left behind")
Helpers.close = close
"""


def test_they_are_used_and_change_nothing(environment: Path, tmp_path: Path) -> None:
    shared = document(environment, tmp_path, COUNT.format(expected=3))
    assert shared == document(environment, tmp_path, COUNT.format(expected=0), alone=False)
    assert {item["name"] for item in shared["distributions"]} == {f"package{number:02}" for number in range(60)}  # type: ignore[attr-defined]
    assert len(shared["extensions"]) == 29  # type: ignore[arg-type] # package03 has no RECORD that can be read
    assert shared["leftovers"]
    assert shared["shared_files"]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("def no(): raise OSError(11, 'no more processes')\nos.fork = no", id="no process allowed"),
        pytest.param("def no(): raise OSError(24, 'too many open files')\nos.pipe = no", id="no pipe allowed"),
        pytest.param("def no(self): raise RuntimeError('no more threads')\nthreading.Thread.start = no", id="no thread allowed"),
        pytest.param("del os.fork", id="no fork"),
        pytest.param(
            "me = os.getpid()\n_work = Location.dist_info\ndef once(self, name):\n    if os.getpid() != me: os.kill(os.getpid(), 9)\n    return _work(self, name)\n"
            "Location.dist_info = once",
            id="killed at work",
        ),
        pytest.param(
            "me = os.getpid()\n_send = send\ndef half(handle, value):\n    if os.getpid() != me:\n        os.write(handle, b'12'); os._exit(0)\n    _send(handle, value)\n"
            "send = half",
            id="an answer cut off",
        ),
    ],
)
def test_without_them_the_answer_is_the_same(environment: Path, tmp_path: Path, fault: str) -> None:
    assert document(environment, tmp_path, fault) == document(environment, tmp_path, alone=False)


HANG = """
me = os.getpid()
_work = Location.dist_info
def slow(self, name):
    if os.getpid() != me and name.startswith("package1"):
        import signal
        signal.pause()
    return _work(self, name)
Location.dist_info = slow
"""


def test_one_that_hangs_is_bounded_by_its_section_and_killed(environment: Path, tmp_path: Path) -> None:
    start = time.monotonic()
    answer = document(environment, tmp_path, HANG, timeout=2.0)
    assert time.monotonic() - start < 20
    status = answer["sections"]["distributions"]  # type: ignore[index]
    assert status["status"] != "ok"
    assert "did not finish within 2 s" in status["reason"]
    assert "interpreter" in answer


LEFT = """
import os, signal, sys
space = {"__name__": "envspec_remote"}
exec(compile(open(sys.argv[1]).read(), "probe", "exec"), space)
os.sched_getaffinity = lambda _: set(range(4))
space["receive"] = lambda _: signal.pause()
print(len(space["Helpers"](3).every), flush=True)
os.kill(os.getpid(), 9)
"""


def test_whoever_waits_for_the_output_does_not_wait_for_them() -> None:
    """The parent is gone; helpers that hang hold neither its output nor its error stream open."""
    command = [sys.executable, "-c", LEFT, probe.__file__]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        assert process.communicate(timeout=20) == (b"3\n", b"")
    finally:
        os.killpg(process.pid, signal.SIGKILL)


SIZES = """
import os, sys
space = {"__name__": "envspec_remote"}
exec(compile(open(sys.argv[1]).read(), "probe", "exec"), space)
os.sched_getaffinity = lambda _: set(range(3))
space["SHARED"]["mark"] = lambda where, items: [where + item for item in items]
helpers = space["Helpers"](2)
for size in (0, 1, 7, 8, 9, 31, 255, 256, 257, 1023, 1024, 3000):
    items = [str(number) for number in range(size)]
    assert helpers.share("mark", "w", items) == ["w" + item for item in items], size
    assert len(helpers.idle) == 2
helpers.close()
assert helpers.share("mark", "w", ["1"] * 99) == ["w1"] * 99
helpers.close()
"""


def test_every_item_is_answered_in_its_place() -> None:
    subprocess.run([sys.executable, "-c", SIZES, probe.__file__], check=True, timeout=60)
