"""The command line as a user meets it: output, exit codes, report files."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3_diag.cli import main
from eagle3_diag.commands import COMMANDS
from tests.eagle3_diag.pairs import Pair, make_pair

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair") / "p")


@pytest.fixture
def copy(pair: Pair, tmp_path: Path) -> Pair:
    """A pair of one's own to damage."""
    shutil.copytree(pair.root, tmp_path / "pair")
    return Pair(tmp_path / "pair", pair.steps, pair.drafts, pair.accepted, pair.at_risk)


def evaluate(*arguments: str) -> int:
    return main(["evaluate", *arguments])


def run(*arguments: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "eagle3_diag", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL, **kwargs)  # type: ignore[call-overload,no-any-return]


# ---- good runs ---------------------------------------------------------------------------------------------------------


def test_prints_the_table_and_exits_0(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(*pair.arguments()) == 0
    out, err = capsys.readouterr()
    assert err == ""
    table = out[out.index("----") :].split("\n\n")[0]  # outside it, a long path may wrap so that a line starts with a number
    rows = [line.split() for line in table.splitlines() if line.split()[:1] and line.split()[0].isdigit()]
    assert [row[0] for row in rows] == [str(k) for k in range(6)]
    assert [int(row[4]) for row in rows] == pair.accepted
    assert [int(row[5]) for row in rows] == pair.at_risk
    length = 1 + sum(pair.accepted) / pair.drafts
    assert f"{length:.2f} tokens per verification step, bonus included (95 % interval" in out
    assert "the wiring or the environment is at fault, not the weights." in " ".join(out.split())


def test_json_dash_prints_only_json(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(*pair.arguments(), "--json", "-") == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert err == ""
    assert report["schema"] == "eagle3-diag/report/1"
    assert report["serving"]["drafts"] == pair.drafts
    assert report["serving"]["accepted_per_position"] == pair.accepted


def test_quiet_prints_nothing(pair: Pair, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert evaluate(*pair.arguments(), "--quiet", "--json", str(tmp_path / "r.json")) == 0
    assert capsys.readouterr() == ("", "")
    assert json.loads((tmp_path / "r.json").read_text())["steps"] == 6


def test_writes_every_form_with_ordinary_permissions_and_leaves_nothing_else(pair: Pair, tmp_path: Path) -> None:
    names = {"--json": "r.json", "--html": "r.html", "--markdown": "r.md", "--speculation-profile": "speculation_profile.json"}
    options = [word for option, name in names.items() for word in (option, str(tmp_path / name))]
    assert evaluate(*pair.arguments(), "--quiet", *options) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(names.values())
    plain = tmp_path / "plain"
    plain.touch()
    assert {(tmp_path / name).stat().st_mode for name in names.values()} == {plain.stat().st_mode}


def test_says_where_the_reports_are(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert evaluate(*pair.arguments(), "--json", "r.json", "--html", "r.html") == 0
    assert capsys.readouterr().out.endswith("\nWritten     r.json, r.html\n")


def test_replaces_an_older_report_through_a_link(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    assert evaluate(*pair.arguments(), "--quiet", "--json", str(tmp_path / "link.json")) == 0
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())["steps"] == 6


def test_same_inputs_give_the_same_bytes_whatever_the_order(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    """All but environment and timing, to the last bit."""
    models = ["--drafter", str(pair.drafter), "--target", str(pair.target), "--json", "-"]
    texts = []
    for samples in ([pair.samples], pair.sample_files, pair.sample_files[::-1]):
        assert evaluate(*models, "--samples", *map(str, samples)) == 0
        report = json.loads(capsys.readouterr().out)
        del report["environment"], report["timing"]
        texts.append(json.dumps(report))
    assert texts[0] == texts[1] == texts[2]


def test_only_serving_gives_the_same_counts(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(*pair.arguments(), "--only", "serving", "--json", "-") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["accuracy"] is None
    assert (report["serving"]["drafts"], report["serving"]["accepted_per_position"]) == (pair.drafts, pair.accepted)


@pytest.mark.parametrize("mode", ["sampled-argmax", "sampled"])
def test_other_serving_modes(pair: Pair, capsys: pytest.CaptureFixture[str], mode: str) -> None:
    extra = ["--temperature", "0.8"] if mode == "sampled" else []
    assert evaluate(*pair.arguments(), "--serving-mode", mode, *extra, "--json", "-") == 0
    serving = json.loads(capsys.readouterr().out)["serving"]
    assert (serving["mode"], serving["temperature"]) == (mode, 0.8 if mode == "sampled" else None)
    assert serving["acceptance_length"] > 1
    assert evaluate(*pair.arguments(), "--serving-mode", mode, *extra) == 0
    assert "Length" in capsys.readouterr().out


def test_limits(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(*pair.arguments(), "--max-samples", "2", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["samples"]["count"] == 2
    assert evaluate(*pair.arguments(), "--max-rows", "40", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["samples"]["rows"] == 40
    assert evaluate(*pair.arguments(), "--prompt-length", "20", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["samples"]["rows"] == 4 * 20


def test_module_runs_as_a_program_without_any_third_library(pair: Pair, tmp_path: Path) -> None:
    """Everything but torch, safetensors and what torch requires (not even numpy) is made unimportable."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "allowed = {'torch', 'torchgen', 'functorch', 'safetensors', 'eagle3_diag'}\n"
        "allowed |= {'typing_extensions', 'sympy', 'mpmath', 'networkx', 'jinja2', 'markupsafe', 'filelock', 'fsspec', 'setuptools', '_distutils_hack'}\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if '.' in name or name in allowed: return None\n"
        "        spec = PathFinder.find_spec(name)\n"
        "        if spec is not None and 'site-packages' in str(spec.origin): raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Block())\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "eagle3_diag", "evaluate", *pair.arguments(), "--json", "-"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["serving"]["drafts"] == pair.drafts


def test_an_unusable_sample_among_many_is_skipped_counted_and_named(copy: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    (copy.samples / "data_9.pt").write_bytes(b"PK\x03\x04 cut short")
    assert evaluate(*copy.arguments(), "--json", "-") == 0
    samples = json.loads(capsys.readouterr().out)["samples"]
    assert samples["count"] == 4
    assert samples["skipped"]["count"] == 1
    assert samples["skipped"]["files"][0]["name"].endswith("data_9.pt")
    assert evaluate(*copy.arguments()) == 0
    assert "1 unusable files skipped" in " ".join(capsys.readouterr().out.split())
    assert evaluate(*copy.arguments(), "--strict") == 2
    assert "data_9.pt" in capsys.readouterr().err


def test_help_lists_every_option_and_needs_no_torch() -> None:
    done = run("evaluate", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    options = (
        "--drafter --target --samples --steps --only --labels --max-samples --max-rows --prompt-length --device --dtype --seed --trainer "
        "--speculation-profile --json --html --quiet --serving-mode --temperature --strict --markdown"
    )
    assert [option for option in options.split() if option not in done.stdout] == []
    code = "import sys; from eagle3_diag.cli import parser; parser(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout == "False\n"


def test_commands_have_distinct_names_and_summaries() -> None:
    assert len({command.name for command in COMMANDS}) == len(COMMANDS)
    assert all(command.summary and command.description for command in COMMANDS)


def test_a_reader_that_stops_early_is_no_error(pair: Pair) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "eagle3_diag", "evaluate", *pair.arguments(), "--json", "-"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_a_closed_stdout_is_no_error(pair: Pair) -> None:
    command = [sys.executable, "-m", "eagle3_diag", "evaluate", *pair.arguments()]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command], cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("victim", ["samples", "drafter/config.json", "drafter/model.safetensors", "target/model.safetensors"])
def test_a_report_never_replaces_an_input(copy: Pair, capsys: pytest.CaptureFixture[str], victim: str) -> None:
    path = copy.sample_files[0] if victim == "samples" else copy.root / victim
    before = path.read_bytes()
    assert evaluate(*copy.arguments(), "--json", str(path)) == 2
    assert "is one of the inputs" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert evaluate(*copy.arguments(), "--quiet", "--json", str(copy.drafter / "speculation_profile.json")) == 0


def test_values_beyond_the_dtype_end_the_run(copy: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    edit_samples(copy, lambda d: d["hidden_states"].__setitem__(-1, d["hidden_states"][-1] * 1e6))  # type: ignore[attr-defined,index]
    assert evaluate(*copy.arguments(), "--dtype", "float16") == 2
    assert "the most float16 computes with; use --dtype bfloat16 or float32" in capsys.readouterr().err
    assert evaluate(*copy.arguments(), "--dtype", "float32") == 0


def test_interrupt_exits_130_without_a_traceback_or_a_report(pair: Pair, tmp_path: Path) -> None:
    """A real signal to a real process that is at work."""
    code = (
        "import sys, time, eagle3_diag.evaluate as module\n"
        "def work(*a, **k): print('working', flush=True); time.sleep(600)\n"
        "module.evaluate = work\n"
        "from eagle3_diag.cli import main; sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "evaluate", *pair.arguments(), "--json", str(tmp_path / "r.json")]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "eagle3-diag evaluate: interrupted\n")
    assert list(tmp_path.iterdir()) == []


# ---- wrong use ---------------------------------------------------------------------------------------------------------

WRONG_USE = {
    "no command": ([], "a command is missing (known: evaluate"),
    "unknown command": (["evalute"], "invalid choice: 'evalute'"),
    "no arguments": (["evaluate"], "the following arguments are required: --drafter, --target, --samples"),
    "unknown option": (["evaluate", "*", "--fast"], "unrecognized arguments: --fast"),
    "abbreviation": (["evaluate", "*", "--step", "5"], "unrecognized arguments: --step"),
    "steps 0": (["evaluate", "*", "--steps", "0"], "argument --steps: 0 is not an integer from 1 to 64"),
    "steps five": (["evaluate", "*", "--steps", "five"], "argument --steps: 'five' is not an integer"),
    "labels": (["evaluate", "*", "--labels", "half"], "argument --labels: invalid choice"),
    "trainer": (["evaluate", "*", "--trainer", "mine"], "argument --trainer: invalid choice"),
    "trainer without accuracies": (["evaluate", "*", "--trainer", "eagle", "--only", "serving"], "--trainer asks for accuracies"),
    "temperature 0": (["evaluate", "*", "--serving-mode", "sampled", "--temperature", "0"], "'0' is not a number above 0"),
    "temperature nan": (["evaluate", "*", "--serving-mode", "sampled", "--temperature", "nan"], "'nan' is not a number above 0"),
    "temperature of greedy": (["evaluate", "*", "--temperature", "0.7"], "--temperature has no meaning with --serving-mode greedy"),
    "device": (["evaluate", "*", "--device", "gpu"], "--device gpu"),
    "max samples": (["evaluate", "*", "--max-samples", "0"], "argument --max-samples: 0 is not an integer of 1 or more"),
    "html dash": (["evaluate", "*", "--html", "-"], "--html - is not possible"),
    "no such folder": (["evaluate", "*", "--html", "/no/such/folder/r.html"], "there is no folder /no/such/folder"),
    "folder as file": (["evaluate", "*", "--markdown", "/"], "--markdown /: is a directory"),
    "one file for two": (["evaluate", "*", "--json", "both", "--html", "both"], "--json and --html both name both"),
}


@pytest.mark.parametrize("case", WRONG_USE)
def test_wrong_use_is_one_sentence_and_exit_code_2(pair: Pair, capsys: pytest.CaptureFixture[str], case: str) -> None:
    words, expected = WRONG_USE[case]
    arguments = [each for word in words for each in (pair.arguments() if word == "*" else [word])]
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("eagle3-diag")
    assert expected in err


def test_reports_are_checked_before_the_work(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("eagle3_diag.evaluate.evaluate", lambda *_, **__: pytest.fail("the work began"))
    assert evaluate(*pair.arguments(), "--json", str(tmp_path / "none" / "r.json")) == 2
    assert "make it, or name another" in capsys.readouterr().err


def test_missing_torch_is_one_sentence(pair: Pair) -> None:
    code = (
        "import sys\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'torch' else real(name, package)\n"
        "from eagle3_diag.cli import main; sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, "evaluate", *pair.arguments()], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "has no torch; run this with the Python that has torch, or install" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# ---- bad input ---------------------------------------------------------------------------------------------------------


def edit_config(path: Path, **values: object) -> None:
    """Replace (None: remove) keys of a config.json."""
    config = json.loads((path / "config.json").read_text())
    for key, value in values.items():
        if value is None:
            config.pop(key, None)
        else:
            config[key] = value
    (path / "config.json").write_text(json.dumps(config))


def edit_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = dict(load_file(path / "model.safetensors"))
    change(tensors)
    save_file(tensors, path / "model.safetensors")


def edit_samples(copy: Pair, change: Callable[[dict[str, object]], None]) -> None:
    for file in copy.sample_files:
        data = torch.load(file, weights_only=True)
        change(data)
        torch.save(data, file)


def _set(tensors: dict[str, torch.Tensor], name: str, value: torch.Tensor) -> None:
    tensors[name] = value


def _poison(tensor: torch.Tensor, value: float) -> torch.Tensor:
    poisoned = tensor.clone()
    poisoned.view(-1)[3] = value
    return poisoned


class Evil:
    """A pickle that would run a command."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.path}",)


def _evil_samples(copy: Pair) -> None:
    for file in copy.sample_files:
        with file.open("wb") as stream:
            pickle.dump(Evil(copy.root / "executed"), stream)


def _locked(copy: Pair) -> None:
    for file in copy.sample_files:
        file.with_name(file.name + ".lock").touch()
    for file in copy.samples.glob("*.pt"):
        assert file.with_name(file.name + ".lock").exists()


def _only(copy: Pair, path: Path, content: bytes) -> None:
    path.write_bytes(content)


BAD: dict[str, tuple[Callable[[Pair], object], tuple[str, ...]]] = {
    "missing drafter": (lambda p: shutil.rmtree(p.drafter), ("drafter",)),
    "empty drafter": (lambda p: [f.unlink() for f in p.drafter.iterdir()], ("drafter", "config.json")),
    "missing target": (lambda p: shutil.rmtree(p.target), ("target",)),
    "no samples there": (lambda p: shutil.rmtree(p.samples), ("samples",)),
    "empty samples": (lambda p: [f.unlink() for f in p.sample_files], ("samples", "no samples")),
    "no config": (lambda p: (p.drafter / "config.json").unlink(), ("config.json",)),
    "config not JSON": (lambda p: _only(p, p.drafter / "config.json", b"{"), ("config.json",)),
    "no weights": (lambda p: (p.drafter / "model.safetensors").unlink(), ("drafter",)),
    "another speculator": (lambda p: edit_config(p.drafter, speculators_model_type="medusa"), ("speculators_model_type", "medusa")),
    "missing tensor": (lambda p: edit_tensors(p.drafter, lambda t: t.pop("fc.weight")), ("fc.weight",)),
    "missing target tensor": (lambda p: edit_tensors(p.target, lambda t: t.pop("lm_head.weight")), ("lm_head.weight",)),
    "extra tensor": (lambda p: edit_tensors(p.drafter, lambda t: _set(t, "surprise.weight", torch.zeros(3))), ("surprise.weight",)),
    "wrong shape": (
        lambda p: edit_tensors(p.drafter, lambda t: _set(t, "layers.0.mlp.down_proj.weight", torch.zeros(32, 63))),
        ("down_proj", "63"),
    ),
    "truncated weights": (
        lambda p: _only(p, p.drafter / "model.safetensors", (p.drafter / "model.safetensors").read_bytes()[:-100]),
        ("model.safetensors",),
    ),
    "corrupt header": (lambda p: _only(p, p.target / "model.safetensors", b"\xff" * 64), ("model.safetensors",)),
    "NaN weight": (lambda p: edit_tensors(p.drafter, lambda t: _set(t, "fc.weight", _poison(t["fc.weight"], float("nan")))), ("fc.weight", "NaN")),
    "Inf weight": (
        lambda p: edit_tensors(p.drafter, lambda t: _set(t, "layers.0.self_attn.q_proj.weight", _poison(t["layers.0.self_attn.q_proj.weight"], float("inf")))),
        ("q_proj",),
    ),
    "NaN features": (
        lambda p: edit_samples(p, lambda d: d["hidden_states"].__setitem__(0, _poison(d["hidden_states"][0], float("nan")))),  # type: ignore[index,attr-defined]
        ("NaN",),
    ),
    "absolute d2t": (lambda p: edit_tensors(p.drafter, lambda t: _set(t, "d2t", t["d2t"] + torch.arange(48))), ("d2t",)),
    "d2t against t2d": (lambda p: edit_tensors(p.drafter, lambda t: _set(t, "t2d", t["t2d"].roll(1))), ("d2t", "t2d")),
    "sample width": (
        lambda p: edit_samples(p, lambda d: d["hidden_states"].pop(0)),  # type: ignore[attr-defined]
        ("aux states", "would fit"),
    ),
    "token ids": (lambda p: edit_samples(p, lambda d: d["input_ids"].__setitem__(20, 9999)), ("9999", "vocabulary")),  # type: ignore[attr-defined]
    "empty response": (lambda p: edit_samples(p, lambda d: d["loss_mask"].zero_()), ("response is empty",)),  # type: ignore[attr-defined]
    "being written": (_locked, (".lock",)),
    "evil pickle": (_evil_samples, ("data_0.pt",)),
    "target of another size": (lambda p: edit_config(p.target, vocab_size=65), ("vocab",)),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_exit_code_2_and_no_report(copy: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    damage, expected = BAD[case]
    damage(copy)
    out = tmp_path / "out"
    out.mkdir()
    reports = ["--json", str(out / "r.json"), "--html", str(out / "r.html"), "--markdown", str(out / "r.md"), "--speculation-profile", str(out / "s.json")]
    assert evaluate(*copy.arguments(), *reports) == 2
    stdout, stderr = capsys.readouterr()
    assert stdout == ""
    assert len(stderr.splitlines()) == 1
    assert "Traceback" not in stderr
    assert [word for word in expected if word not in stderr] == []
    assert list(out.iterdir()) == []
    assert not (copy.root / "executed").exists()


def test_samples_of_another_target_give_a_warning_and_no_verdict_on_the_weights(copy: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    edit_samples(copy, lambda d: d["hidden_states"].__setitem__(-1, torch.randn(40, 32, generator=torch.Generator().manual_seed(1))))  # type: ignore[attr-defined]
    assert evaluate(*copy.arguments(), "--json", "-") == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["warnings"]) == 1
    assert "another target" in report["warnings"][0]
    assert report["verdict"]["code"] == "unusable"


def test_out_of_memory_says_what_to_lower(pair: Pair, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("eagle3_diag.evaluate.rollout", exhausted)
    assert evaluate(*pair.arguments(), "--json", str(tmp_path / "r.json")) == 2
    err = capsys.readouterr().err
    assert "out of memory" in err
    assert "--dtype bfloat16" in err
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_no_report(pair: Pair, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second of two files fails: the first must not appear either."""
    calls = []

    def fsync(_: int) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("eagle3_diag.output.os.fsync", fsync)
    assert evaluate(*pair.arguments(), "--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html")) == 2
    err = capsys.readouterr().err
    assert "r.html: could not be written (No space left on device)" in err
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_no_text_are_shown_escaped(copy: Pair, tmp_path: Path) -> None:
    """A file name of bytes that no encoding knows, on a terminal that knows only ASCII."""
    strange = os.fsencode(copy.samples) + b"/bad\xff\x1b[31m.pt"
    with open(strange, "wb") as file:  # noqa: PTH123
        file.write(b"no sample")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-m", "eagle3_diag", "evaluate", *copy.arguments(), "--html", str(tmp_path / "r.html")], env=env, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in done.stdout
    assert b"bad" in done.stdout
    assert "\x1b" not in (tmp_path / "r.html").read_text("utf-8")
