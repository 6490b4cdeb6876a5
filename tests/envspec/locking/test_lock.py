"""``envspec lock``: real resolutions by uv from a folder of wheels, and every way a lock is refused or found wanting."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from envspec.locking.check import check, check_wheel, load_stack_lock
from envspec.locking.environments import Platform
from envspec.locking.errors import ResolutionError
from envspec.locking.inputs import read_inputs
from envspec.locking.roles import declared
from envspec.locking.uv import explain, find_uv
from envspec.locks import load_lock, load_role_locks
from envspec.stacks import find_stacks, load_stack
from tests.envspec.locking.conftest import Run
from tests.envspec.locking.index import LINUX, Index, sha256

ROOT = Path(__file__).parents[3]
SHIPPED = ("sglang", "vllm")


@pytest.fixture
def demo(index: Index) -> Index:
    """alpha needs beta with an extra that needs gamma; delta is compiled for each Python and for other systems."""
    index.add("alpha", "1.0", ["beta[fast]>=1", "colour; sys_platform == 'win32'"])
    index.add("beta", "1.2", ["gamma>=2; extra == 'fast'", "backport; python_version < '3.12'"])
    index.add("gamma", "2.0")
    index.add("backport", "0.1")
    for tag in (f"cp311-cp311-{LINUX}", f"cp312-cp312-{LINUX}", "cp312-cp312-manylinux_2_39_x86_64", "cp312-cp312-musllinux_1_2_x86_64", "cp312-cp312-win_amd64"):
        index.add("delta", "3.0", tag=tag)
    index.stack("alpha\ndelta\n")
    return index


class TestLock:
    def test_it_holds_the_whole_closure_and_only_the_files_of_the_platform(self, demo: Index, run: Run) -> None:
        code, out, err = run("lock")
        assert (err, out, code) == ("", "small: new lock with 5 distributions\n", 0)
        text = (demo.stacks / "small" / "requirements.lock").read_text()
        body = text.split("\n\n", 1)[1]
        wheels = {path.name: sha256(path) for path in demo.wheels.iterdir()}
        assert body == (
            f"alpha==1.0 \\\n    --hash=sha256:{wheels['alpha-1.0-py3-none-any.whl']}\n"
            f"backport==0.1 ; python_version == '3.11' \\\n    --hash=sha256:{wheels['backport-0.1-py3-none-any.whl']}\n"
            f"beta==1.2 \\\n    --hash=sha256:{wheels['beta-1.2-py3-none-any.whl']}\n"
            f"delta==3.0 \\\n    --hash=sha256:{wheels[f'delta-3.0-cp311-cp311-{LINUX}.whl']} \\\n    --hash=sha256:{wheels[f'delta-3.0-cp312-cp312-{LINUX}.whl']}\n"
            f"gamma==2.0 \\\n    --hash=sha256:{wheels['gamma-2.0-py3-none-any.whl']}\n"
        )
        assert str(demo.wheels) not in text + (demo.stacks / "small" / "requirements.metadata.json").read_text()

    def test_uv_installs_it_with_required_hashes(self, demo: Index, run: Run, tmp_path: Path) -> None:
        demo.add("delta", "3.0", tag="py3-none-any")
        run("lock")
        venv.create(tmp_path / "env", symlinks=True)
        lock = demo.stacks / "small" / "requirements.lock"
        command = [find_uv(), "pip", "sync", "--require-hashes", "--dry-run", "--python", str(tmp_path / "env"), "--python-version", "3.12", str(lock)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert sorted(re.findall(r"\+ (\S+)", done.stderr)) == ["alpha==1.0", "beta==1.2", "delta==3.0", "gamma==2.0"]

    @pytest.mark.parametrize("variable", ["UV_CONFIG_FILE", "UV_NO_CONFIG"])
    def test_a_configuration_that_the_user_names_is_used_beside_the_platform(
        self, demo: Index, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
    ) -> None:
        if variable == "UV_CONFIG_FILE":
            monkeypatch.delenv("UV_FIND_LINKS")
            (tmp_path / "company.toml").write_text(f'[pip]\nfind-links = ["{demo.wheels}"]\n')
        monkeypatch.setenv(variable, str(tmp_path / "company.toml") if variable == "UV_CONFIG_FILE" else "1")
        # Without the platform, alpha's need of colour on Windows would have no solution.
        assert run("lock") == (0, "small: new lock with 5 distributions\n", "")

    def test_locking_again_changes_no_byte_and_keeps_versions_until_upgrade(self, demo: Index, run: Run) -> None:
        run("lock")
        files = [demo.stacks / "small" / name for name in ("requirements.lock", "requirements.metadata.json")]
        before = [path.read_bytes() for path in files]
        demo.add("gamma", "2.7")
        assert run("lock")[1] == "small: unchanged, 5 distributions\n"
        assert [path.read_bytes() for path in files] == before
        assert run("lock", "--upgrade")[1] == "small: 1 raised, 4 the same\n  raised   gamma 2.0 → 2.7\n"

    def test_versions_that_differ_by_python_are_kept_each(self, index: Index, run: Run) -> None:
        index.add("tool", "1.0")
        index.add("tool", "3.0")
        index.stack("tool<2 ; python_version == '3.11'\ntool>=2 ; python_version == '3.12'\n")
        run("lock")
        index.add("tool", "1.5")
        index.add("tool", "3.5")
        assert run("lock")[1] == "small: unchanged, 2 distributions\n"
        assert run("lock", "--upgrade")[1] == (
            "small: 1 raised, 0 the same\n"
            "  raised   tool 1.0 where python_version == '3.11' and 3.0 where python_version == '3.12' "
            "→ 1.5 where python_version == '3.11' and 3.5 where python_version == '3.12'\n"
        )

    def test_changes_are_told_in_words(self, demo: Index, run: Run) -> None:
        run("lock")
        demo.add("alpha", "2.0", ["epsilon"])
        demo.add("epsilon", "1.0")
        demo.stack("alpha==2.0\ndelta<3\n")
        demo.add("delta", "2.0")
        assert run("lock")[1] == (
            "small: 1 raised, 1 lowered, 1 added, 3 removed, 0 the same\n"
            "  raised   alpha 1.0 → 2.0 (another major version)\n"
            "  lowered  delta 3.0 → 2.0 (another major version)\n"
            "  added    epsilon 1.0: alpha 2.0 needs epsilon\n"
            "  removed  backport 0.1: nothing requires it any more\n"
            "  removed  beta 1.2: nothing requires it any more\n"
            "  removed  gamma 2.0: nothing requires it any more\n"
        )

    def test_a_role_of_its_own_keeps_the_common_versions_and_is_reported_as_declared(self, demo: Index, run: Run) -> None:
        demo.add("gamma", "2.7")
        stack = demo.stack("alpha\ngamma==2.0\n", train="epsilon\n")
        demo.add("epsilon", "1.0", ["beta"])
        code, out, _ = run("lock")
        assert code == 0
        assert out.endswith("train differs as declared: the trainer differs\n  epsilon: train 1.0, infer without it\n")
        assert {role: sorted(entry.name for entry in load_stack_lock(stack, role).entries) for role in ("train", "infer")} == {
            "train": ["alpha", "backport", "beta", "epsilon", "gamma"],
            "infer": ["alpha", "backport", "beta", "gamma"],
        }
        assert run("lock", "--check")[0] == 0
        assert {each.role: each.lock.names for each in load_role_locks(stack.folder, ("train", "infer"))} == {
            "train": {"alpha", "backport", "beta", "epsilon", "gamma"},
            None: {"alpha", "backport", "beta", "gamma"},
        }
        (declaration,) = declared(stack)
        assert (str(declaration), declaration.reason) == ("package epsilon", "the trainer differs")
        assert declaration.covers("package", "epsilon", ("train", "infer"))
        (stack.folder / "requirements.train.in").write_text("epsilon<2\n")
        code, out, _ = run("lock", "--check")
        assert code == 1
        assert "requirements.train.lock: made for other inputs than requirements.train.in holds now (epsilon<2 is new, epsilon is gone)" in out


class TestRefused:
    def refused(self, index: Index, run: Run) -> str:
        code, out, err = run("lock")
        assert (code, out) == (1, "")
        assert err.count("\n") == 1
        assert not list(index.stacks.glob("*/requirements.lock"))
        assert not list(index.stacks.glob("*/*.json"))
        return err

    def cuda(self, index: Index, *requires: str, torch: str = "2.9.1") -> None:
        index.add("torch", torch, requires)
        for name, version in (("nvidia-cuda-runtime-cu12", "12.8.90"), ("nvidia-cuda-runtime-cu12", "12.6.77"), ("nvidia-cuda-runtime", "13.0.48"), ("nvidia-nccl-cu13", "2.28")):
            index.add(name, version)
        index.stack("torch\n", settings='cuda: "12.8"\n')

    def test_a_torch_of_the_stacks_cuda_is_taken(self, index: Index, run: Run) -> None:
        self.cuda(index, "nvidia-cuda-runtime-cu12==12.8.90")
        assert run("lock")[0] == 0

    @pytest.mark.parametrize(
        ("requires", "built"),
        [(["nvidia-cuda-runtime-cu12==12.6.77"], "for CUDA 12.6"), (["nvidia-cuda-runtime==13.0.48"], "for CUDA 13.0"), ([], "without CUDA")],
    )
    def test_a_torch_of_another_cuda_is_named(self, index: Index, run: Run, requires: list[str], built: str) -> None:
        self.cuda(index, *requires)
        expected = f"envspec: small: this lock is refused: torch 2.9.1 is built {built}, the stack is for CUDA 12.8 (the inputs ask for it)\n"
        assert self.refused(index, run) == expected

    def test_a_cpu_build_is_without_cuda_whatever_it_requires(self, index: Index, run: Run) -> None:
        self.cuda(index, torch="2.9.1+cpu")
        assert "torch 2.9.1+cpu is built without CUDA" in self.refused(index, run)

    def test_a_part_of_another_cuda_is_named_with_who_brings_it(self, index: Index, run: Run) -> None:
        self.cuda(index, "nvidia-cuda-runtime-cu12==12.8.90")
        index.add("server", "0.5", ["torch", "kernels"])
        index.add("kernels", "1.0", ["nvidia-nccl-cu13"])
        index.stack("server\n", settings='cuda: "12.8"\n')
        assert self.refused(index, run) == (
            "envspec: small: this lock is refused: nvidia-nccl-cu13 2.28 is a part of CUDA 13 among those of CUDA 12 "
            "(kernels 1.0 needs nvidia-nccl-cu13; server 0.5 needs kernels; the inputs ask for server)\n"
        )

    def test_a_package_without_a_wheel_for_one_python_or_for_the_c_library(self, index: Index, run: Run) -> None:
        index.add("delta", "3.0", tag=f"cp311-cp311-{LINUX}")
        index.add("delta", "3.0", tag="cp312-cp312-manylinux_2_39_x86_64")
        index.stack("delta\n")
        assert self.refused(index, run) == (
            "envspec: delta 3.0 has no wheel for CPython 3.12 on Linux x86_64 with glibc 2.36; the index has "
            f"delta-3.0-cp311-cp311-{LINUX}.whl, delta-3.0-cp312-cp312-manylinux_2_39_x86_64.whl; take another version, or build the wheel and serve it\n"
        )

    def test_wheels_that_disagree_in_what_they_require(self, index: Index, run: Run) -> None:
        index.add("beta", "1.0")
        index.add("delta", "3.0", tag=f"cp311-cp311-{LINUX}")
        index.add("delta", "3.0", ["beta"], tag=f"cp312-cp312-{LINUX}")
        index.stack("delta\nbeta\n")
        assert "the wheels of delta 3.0 disagree in what they require (beta)" in self.refused(index, run)

    def test_a_file_that_was_replaced_on_the_index(self, demo: Index, run: Run) -> None:
        run("lock")
        lock = demo.stacks / "small" / "requirements.lock"
        before, old = lock.read_bytes(), sha256(demo.wheels / "gamma-2.0-py3-none-any.whl")
        new = sha256(demo.add("gamma", "2.0", content="another build"))
        code, out, err = run("lock")
        assert (code, out) == (1, "")
        assert err == (
            f"envspec: hash mismatch: the index now serves another gamma-2.0-py3-none-any.whl, sha256 {new}, the lock holds {old}; "
            "find out why it was replaced, or take it with --upgrade\n"
        )
        assert lock.read_bytes() == before
        code, out, _ = run("lock", "--upgrade")
        assert code == 0
        assert out.endswith(f"  changed  gamma 2.0: gamma-2.0-py3-none-any.whl is another file, sha256 {old[:12]}… before and {new[:12]}… now\n")


class TestUnsolved:
    @pytest.mark.parametrize(
        ("inputs", "words"),
        [
            ("alpha\nbeta<1\n", "you require beta<1"),
            ("missing\n", "Because missing was not found in"),
            ("win\n", "Because win==1.0 has no compatible wheels"),
        ],
    )
    def test_uvs_reason_in_one_line_and_exit_code_2(self, demo: Index, run: Run, inputs: str, words: str) -> None:
        demo.add("win", "1.0", tag="cp311-cp311-win_amd64")
        demo.add("beta", "0.9")
        demo.stack(inputs)
        code, out, err = run("lock")
        assert (code, out) == (2, "")
        assert err.startswith("envspec: small: uv pip compile failed: ")
        assert words in err
        assert err.count("\n") == 1
        assert not list(demo.stacks.glob("*/requirements.*[lj]*k*"))

    def test_without_uv_it_says_how_to_get_it(self, demo: Index, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
        monkeypatch.setenv("PATH", str(tmp_path))
        assert run("lock") == (2, "", "envspec: small: there is no uv beside this Python nor on the PATH; install it (pip install uv), or use `nox -s lock`, which brings its own\n")
        with pytest.raises(ResolutionError):
            find_uv()

    def test_a_login_in_uvs_message_is_left_out(self) -> None:
        assert explain("Using CPython 3.12\nerror: Failed to fetch: https://me:secret@index.example/simple/x/\ncause: 403") == "Failed to fetch: https://index.example/simple/x/ 403"

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("--index-url https://index.example/simple", ":2: --index-url does not belong here"),
            ("beta @ https://index.example/beta.whl", ":2: beta is asked for by address"),
            ("beta = 1", ":2: 'beta = 1' is not a requirement"),
            ("-r missing.in", "cannot read "),
            ("-r requirements.in", "includes itself"),
        ],
    )
    def test_inputs_that_a_lock_cannot_hold(self, demo: Index, run: Run, line: str, words: str) -> None:
        demo.stack(f"alpha\n{line}\n")
        code, out, err = run("lock")
        assert (code, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1

    def test_an_include_that_is_a_link_to_itself(self, demo: Index, run: Run) -> None:
        demo.stack("alpha\n-r loop.in\n")
        (demo.stacks / "small" / "loop.in").symlink_to("loop.in")
        code, out, err = run("lock")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "cannot read " in err

    def test_a_file_that_many_include_is_read_once(self, tmp_path: Path) -> None:
        (tmp_path / "0.in").write_text("alpha\n")
        for number in range(1, 40):
            (tmp_path / f"{number}.in").write_text(f"-r {number - 1}.in\n" * 2)
        made = read_inputs([tmp_path / "39.in"], Platform(python=("3.12",), glibc="2.35"))
        assert [str(item) for item in made.requirements] == ["alpha"]

    def test_no_input_at_all(self, demo: Index, run: Run) -> None:
        demo.stack("# nothing\n")
        assert "asks for no package" in run("lock")[2]


class TestBehind:
    def test_an_unpinned_input_that_is_left_behind_is_warned_of_with_what_holds_it(self, index: Index, run: Run) -> None:
        for version, need in (("0.2.0", "tf>=4"), ("0.3.0", "tf>=4,<4.5"), ("0.9.0", "tf>=5")):
            index.add("spec", version, [need])
        for version in ("4.57.1", "5.0.0"):
            index.add("tf", version)
        index.add("server", "0.5.9", ["tf==4.57.1"])
        index.stack("server==0.5.9\n# the trainer\nspec\n")
        code, _, err = run("lock")
        where = index.stacks / "small" / "requirements.in"
        assert (code, err) == (
            0,
            (f"warning: {where}:3: spec is not pinned and became 0.2.0, the newest is 0.9.0; 0.9.0 needs tf>=5, the lock has 4.57.1 "
            "(server 0.5.9 needs tf==4.57.1; the inputs ask for server==0.5.9); pin the version you mean\n"),
        )
        index.stack("server==0.5.9\nspec==0.2.0\n")
        assert run("lock")[2] == ""

    def test_one_minor_version_is_not_behind(self, index: Index, run: Run) -> None:
        index.add("spec", "0.8.0")
        index.add("spec", "0.9.0")
        index.add("server", "1.0", ["spec<0.9"])
        index.stack("server\nspec\n")
        assert run("lock")[2] == ""


class TestCheck:
    @pytest.fixture
    def lock(self, demo: Index, run: Run) -> Path:
        run("lock")
        return demo.stacks / "small" / "requirements.lock"

    def found(self, run: Run, code: int = 1) -> list[str]:
        status, out, err = run("lock", "--check")
        assert (status, err) == (code, "")
        return out.splitlines()

    def test_a_fresh_lock_stands(self, lock: Path, run: Run) -> None:
        assert self.found(run, 0) == ["small: 5 distributions, closed for CPython 3.11 and 3.12 on linux x86_64 with glibc 2.36, and locked for these inputs"]

    def test_nothing_is_asked_of_uv(self, lock: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        assert len(self.found(run, 0)) == 1

    def test_other_spelling_of_the_same_inputs_stands(self, lock: Path, run: Run) -> None:
        (lock.parent / "requirements.in").write_text("# sorted otherwise\nDelta\n\nALPHA # first\n")
        self.found(run, 0)

    def test_other_inputs(self, lock: Path, run: Run) -> None:
        (lock.parent / "requirements.in").write_text("alpha\ndelta>=3\n")
        assert self.found(run) == [f"{lock}: made for other inputs than requirements.in holds now (delta>=3 is new, delta is gone); run `nox -s lock -- small`"]

    def test_another_python_or_c_library(self, lock: Path, run: Run) -> None:
        file = lock.parent / "stack.yaml"
        file.write_text(file.read_text().replace("2.36", "2.17"))
        first, *rest = self.found(run)
        assert "made for other inputs" in first
        # delta's wheels need glibc 2.28.
        assert [re.sub(r"^.*: (delta.*); the lock.*$", r"\1", line) for line in rest] == [
            f"delta 3.0 has no wheel for CPython {python} on Linux x86_64 with glibc 2.17" for python in ("3.11", "3.12")
        ]

    @pytest.mark.parametrize(
        ("pattern", "replacement", "words"),
        [
            ("gamma==2.0", "gamma==2.1", "edited by hand: gamma is 2.1 here and 2.0 in requirements.metadata.json; run `nox -s lock -- small`"),
            (r"(gamma==2.0 \\\n    --hash=sha256:)\w{64}", r"\g<1>" + "0" * 64, "edited by hand: the hashes of gamma 2.0 changed: sha256:" + "0" * 64 + " was not there, sha256:"),
            (" ; python_version == '3.11'", "", "edited by hand: the condition of backport 0.1 changed"),
            (r"\Z", "zeta==1.0 --hash=sha256:" + "0" * 64 + "\n", "edited by hand: zeta 1.0 was not there"),
            (r"gamma==2.0 \\\n.*\n", "", "edited by hand: gamma 2.0 is gone"),
            (r"gamma==2.0", "gamma==2.0 ", "edited by hand: its lines are not those that were written"),
        ],
    )
    def test_a_lock_edited_by_hand(self, lock: Path, run: Run, pattern: str, replacement: str, words: str) -> None:
        text = lock.read_text()
        edited = re.sub(pattern, replacement, text)
        assert edited != text
        lock.write_text(edited)
        (line,) = self.found(run)
        assert words in line
        if "gamma 2.0 is gone" not in words and "its lines" not in words:
            assert re.match(rf"{re.escape(str(lock))}:\d+: ", line)

    def test_digests_made_to_fit_an_edit_do_not_hide_an_open_lock(self, lock: Path, run: Run) -> None:
        """Someone who edits both files and the header still cannot make an open lock look closed."""
        import hashlib

        metadata = lock.parent / "requirements.metadata.json"
        data = json.loads(metadata.read_text())
        for item in data["distributions"]:
            if item["name"] == "gamma":
                item["version"] = "1.0"
        metadata.write_text(json.dumps(data, indent=1) + "\n")
        head, body = lock.read_text().replace("gamma==2.0", "gamma==1.0").split("\n\n", 1)
        for key, text in (("entries", body), ("metadata", metadata.read_text())):
            head = re.sub(rf"(?m)^# {key}: .*$", f"# {key}: sha256:{hashlib.sha256(text.encode()).hexdigest()}", head)
        lock.write_text(f"{head}\n\n{body}")
        (line,) = self.found(run)
        assert line.endswith(": beta[fast] 1.2 needs gamma>=2, the lock has 1.0")

    def test_a_header_that_is_cut(self, lock: Path, run: Run) -> None:
        lock.write_text(lock.read_text().split("\n\n", 1)[1])
        assert self.found(run) == [f"{lock}:1: the header of digests is missing or cut; run `nox -s lock -- small`"]

    def test_metadata_of_another_time(self, lock: Path, run: Run) -> None:
        metadata = lock.parent / "requirements.metadata.json"
        data = json.loads(metadata.read_text())
        data["distributions"][0]["requires"] = []
        metadata.write_text(json.dumps(data))
        lines = self.found(run)
        assert lines[0] == f"{metadata}: is not the file that was written with requirements.lock; run `nox -s lock -- small`"
        assert any(line.endswith("beta 1.2 is required by nobody; run `nox -s lock -- small`") for line in lines)

    @pytest.mark.parametrize(
        ("name", "text", "words"),
        [
            ("requirements.lock", None, "there is no "),
            ("requirements.metadata.json", None, "there is no "),
            ("requirements.metadata.json", "{", "is not valid JSON"),
            ("requirements.metadata.json", "[]", "the document: expected dict, found list"),
            ("requirements.metadata.json", '{"version": 1, "stack": "s", "inputs": [], "distributions": [{"name": 1}]}', "distributions[0].name: expected str, found int"),
            ("requirements.lock", "alpha>=1\n", "'alpha>=1' is not pinned to one version"),
            ("requirements.lock", "# nothing\n", "lists no package"),
        ],
    )
    def test_files_that_cannot_be_read(self, lock: Path, run: Run, name: str, text: str | None, words: str) -> None:
        path = lock.parent / name
        path.unlink() if text is None else path.write_text(text)
        code, out, err = run("lock", "--check")
        assert (code, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1

    def test_in_github_actions_each_problem_is_an_annotation(self, lock: Path, run: Run) -> None:
        lock.write_text(lock.read_text().replace("gamma==2.0", "gamma==2.1"))
        number = next(i for i, line in enumerate(lock.read_text().splitlines(), 1) if line.startswith("gamma"))
        _, _, err = run("lock", "--check", environment={"GITHUB_ACTIONS": "true"})
        assert err.startswith(f"::error file={lock.as_posix()},line={number},title=Lock of small::edited by hand: gamma is 2.1 here")

    def test_it_goes_with_nothing_that_writes(self, lock: Path, run: Run) -> None:
        assert run("lock", "--check", "--upgrade")[0] == 2

    def test_a_wheel_is_held_against_the_lock_by_name_and_hash(self, demo: Index, lock: Path) -> None:
        held = load_stack_lock(load_stack(lock.parent))
        path = demo.wheels / "gamma-2.0-py3-none-any.whl"
        assert check_wheel(path.name, sha256(path), held) is None
        assert check_wheel(str(path), "0" * 64, held) == f"hash mismatch: {path.name} has sha256 {'0' * 64}, the lock of small holds {sha256(path)}"
        assert check_wheel("other-1.0-py3-none-any.whl", "0" * 64, held) == "other-1.0-py3-none-any.whl is no file of the lock of small"


class TestShipped:
    def test_they_are_the_two_real_stacks(self) -> None:
        assert tuple(path.name for path in find_stacks(ROOT / "docker" / "stacks")) == SHIPPED

    @pytest.mark.parametrize("name", SHIPPED)
    def test_its_lock_stands(self, name: str) -> None:
        assert check(load_stack(ROOT / "docker" / "stacks" / name)) == []

    @pytest.mark.parametrize(
        ("name", "versions"),
        [
            ("sglang", {"torch": "2.9.1", "sglang": "0.5.9", "speculators": "0.7.0.2", "sgl-kernel": "0.3.21", "nvidia-cuda-runtime-cu12": "12.8.90"}),
            ("vllm", {"torch": "2.10.0", "vllm": "0.19.1", "speculators": "0.9.0", "nvidia-cuda-runtime-cu12": "12.8.90"}),
        ],
    )
    def test_it_holds_the_versions_that_belong_together(self, name: str, versions: dict[str, str]) -> None:
        stack = load_stack(ROOT / "docker" / "stacks" / name)
        held = {entry.name: entry.version for entry in load_stack_lock(stack).entries}
        assert {key: held.get(key) for key in versions} == versions
        assert (stack.cuda, stack.roles) == ("12.8", {})
        assert {package.name for package in load_lock(stack.lock()).packages} == held.keys()

    @pytest.mark.parametrize("name", SHIPPED)
    def test_no_file_of_it_holds_an_address_or_another_platform(self, name: str) -> None:
        for path in (ROOT / "docker" / "stacks" / name).iterdir():
            assert "://" not in path.read_text(), path
        names = {wheel.name for entry in load_stack_lock(load_stack(ROOT / "docker" / "stacks" / name)).entries for wheel in entry.wheels}
        assert not [name for name in names if re.search(r"win_amd64|macosx|aarch64|musllinux|win32|cp313-cp313", name)]

    @pytest.mark.slow
    @pytest.mark.parametrize("name", SHIPPED)
    def test_it_resolves_from_the_real_index(self, name: str, tmp_path: Path) -> None:
        """Needs the network: the inputs, locked anew beside the shipped lock, keep every version and every file."""
        import shutil

        folder = tmp_path / "stacks" / name
        shutil.copytree(ROOT / "docker" / "stacks" / name, folder)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        command = [sys.executable, "-m", "envspec", "lock", name, "--stacks", str(folder.parent)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert re.fullmatch(rf"{name}: unchanged, \d+ distributions\n", done.stdout)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
