"""A server's life around a probe: started, waited for, asked, stopped. The engine is a script that answers as vLLM does."""

from __future__ import annotations

import json
import stat
import sys
import textwrap
import time
from pathlib import Path

import pytest

from eagle3_diag.cli import main
from eagle3_diag.demo import paths
from eagle3_diag.errors import InputError
from eagle3_diag.serving.http import get_text
from eagle3_diag.serving.launch import Launch, launched

ROOT = Path(__file__).parents[3]

#: Started as `python -m vllm... --port N --speculative-config {...}`: serves what the file beside it says every prefix drafts.
ENGINE = """\
    #!{python}
    import json, sys, time
    sys.path.insert(0, {root!r})
    from pathlib import Path
    from tests.eagle3_diag.serving.stand_in import StandIn, _Handler, _Server
    words = dict(zip(sys.argv, sys.argv[1:]))
    drafts = json.loads(Path(__file__).with_suffix(".json").read_text())
    steps = json.loads(words["--speculative-config"])["num_speculative_tokens"]
    state = StandIn(lambda prefix: tuple(drafts.get(",".join(map(str, prefix)), ([0] * 8, 0))), steps)
    class Handler(_Handler):
        def do_GET(self):
            self._send("") if self.path == "/health" else super().do_GET()
    print("engine starts", flush=True)
    with _Server(("127.0.0.1", int(words["--port"])), Handler) as http:
        http.state = state
        http.serve_forever()
"""


def script(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """Serves three samples of the demo as right wiring drafts them."""
    from tests.eagle3_diag.test_probe_command import INPUTS, drafts

    right = drafts("as-trained")
    found = {}
    for path in INPUTS[5:]:
        from safetensors.torch import load_file

        tokens = load_file(path)["token_ids"].tolist()
        for t in range(5, len(tokens) - 1):
            found[",".join(map(str, tokens[: t + 1]))] = right(tokens[: t + 1])
    (tmp_path / "engine.json").write_text(json.dumps(found))
    return script(tmp_path / "engine", ENGINE.format(python=sys.executable, root=str(ROOT)))


def test_serve_check_starts_asks_and_stops(engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.eagle3_diag.test_probe_command import INPUTS

    words = ["serve-check", "--python", str(engine), *INPUTS, "--requests", "16", "--json", str(tmp_path / "report.json"), "--log", str(tmp_path / "server.log")]
    assert main(words) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert "Served as trained: 16 of 16 rows" in out
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["verdict"], report["rows"]["answered"]) == ("quality", 16)
    assert "engine starts" in (tmp_path / "server.log").read_text()


def test_a_server_is_stopped_whatever_happens(engine: Path, tmp_path: Path) -> None:
    launch = Launch(engine="vllm", python=str(engine), target=tmp_path, drafter=tmp_path, steps=5)
    url = ""

    def interrupted() -> None:
        nonlocal url
        with launched(launch, tmp_path / "log", timeout=60) as url:
            assert get_text(f"{url}/health") == ""
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    begun = time.monotonic()
    with pytest.raises(InputError, match="cannot be reached"):
        get_text(f"{url}/health")
    assert time.monotonic() - begun < 10


def test_servers_that_do_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = script(tmp_path / "broken", f"#!{sys.executable}\nimport sys\nprint('loading')\nsys.exit('RuntimeError: no room')\n")
    code = main(["serve-check", "--python", str(broken), "--log", str(tmp_path / "log"), "--quiet"])
    assert code == 2
    assert "ended with code 1 before it answered: RuntimeError: no room" in capsys.readouterr().err
    silent = script(tmp_path / "silent", f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    code = main(["serve-check", "--python", str(silent), "--start-timeout", "0.5", "--quiet"])
    assert code == 2
    assert "did not answer within 0.5 s: it said nothing" in capsys.readouterr().err


def test_wrong_use_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["--python", str(tmp_path / "absent")], "there is no such interpreter"),
        (["--drafter", str(paths().drafter)], "go together; given was only --drafter"),
        (["--served-drafter", str(tmp_path)], "has no config.json"),
    ):
        assert main(["serve-check", *words]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert len(err.splitlines()) == 1


def test_each_engines_command_line(tmp_path: Path) -> None:
    launch = Launch(engine="vllm", python="python3", target=Path("/t"), drafter=Path("/d"), steps=3, arguments=["--dtype=float32"])
    words = launch.command(8000)
    assert words[:5] == ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/t"]
    assert json.loads(words[words.index("--speculative-config") + 1]) == {"method": "eagle3", "model": "/d", "num_speculative_tokens": 3}
    assert words[-1] == "--dtype=float32"
    sglang = Launch(engine="sglang", python="python3", target=Path("/t"), drafter=Path("/d"), steps=3).command(8000)
    assert sglang[sglang.index("--speculative-num-draft-tokens") + 1] == "4"
    assert sglang[sglang.index("--speculative-eagle-topk") + 1] == "1"
