"""Start a real server with a drafter, wait until it answers, stop it. Standard library only."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from eagle3_diag.errors import InputError
from eagle3_diag.serving.http import get_text

ENGINES = ("vllm", "sglang")
#: What a server that has a CPU only needs; others do not read them.
_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
_LOOK = 0.5
_GRACE = 30.0
_LAST_LINES = 3


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What to start: an interpreter that has the engine, a pair, K, further arguments of the engine's own."""

    engine: str
    python: str
    target: Path
    drafter: Path
    steps: int
    arguments: Sequence[str] = ()

    def command(self, port: int) -> list[str]:
        """The engine's own command line. vLLM: ``entrypoints/openai/api_server.py``; SGLang: ``launch_server.py``."""
        where = ["--host", "127.0.0.1", "--port", str(port)]
        if self.engine == "vllm":
            speculative = {"method": "eagle3", "model": str(self.drafter), "num_speculative_tokens": self.steps}
            own = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(self.target), "--speculative-config", json.dumps(speculative)]
        else:
            own = [
                "-m", "sglang.launch_server", "--model-path", str(self.target), "--speculative-algorithm", "EAGLE3",
                "--speculative-draft-model-path", str(self.drafter), "--speculative-num-steps", str(self.steps), "--speculative-eagle-topk", "1",
                "--speculative-num-draft-tokens", str(self.steps + 1), "--enable-metrics",
            ]  # fmt: skip
        return [self.python, *own, *where, *self.arguments]


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def launched(
    launch: Launch, log: Path, *, timeout: float, say: Callable[[str], None] = lambda _: None, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The server's address while it runs; whatever happens it is stopped, with all processes that it started.

    Its output goes to ``log``. Raises InputError: the interpreter is missing, the server ended or did not answer in time.
    """
    port = free_port()
    command = launch.command(port)
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env={**_ENVIRONMENT, **os.environ, **(environment or {})}
            )
        except OSError as error:
            raise InputError(f"{launch.python} cannot be started ({error.strerror}); name a Python that has {launch.engine}") from None
    try:
        begun = time.monotonic()
        while not _healthy(url):
            if process.poll() is not None:
                raise InputError(f"the {launch.engine} server ended with code {process.returncode} before it answered: {_last(log)} (all of it: {log})")
            if time.monotonic() - begun > timeout:
                raise InputError(f"the {launch.engine} server did not answer within {timeout:g} s: {_last(log)} (all of it: {log}); give --start-timeout more")
            time.sleep(_LOOK)
        say(f"{launch.engine} answers at {url} after {time.monotonic() - begun:.0f} s.")
        yield url
    finally:
        _stop(process)


def _healthy(url: str) -> bool:
    try:
        get_text(f"{url}/health", timeout=5.0)
    except InputError:
        return False
    return True


def _last(log: Path) -> str:
    """The last lines of a server's output that say something; of a Python error, the error itself."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return " / ".join((errors or lines)[-_LAST_LINES:])[-600:] or "it said nothing"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and everything of its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        if number == signal.SIGKILL:
            break
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    process.wait()
