"""Locks of each format: read strictly, evaluated for hosts that are not the running one."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.markers import default_environment
from packaging.tags import sys_tags

from envspec.errors import UsageError
from envspec.locks import Lock, Target, load_lock, load_role_locks
from envspec.locks.requirements import logical_lines
from envspec.locks.target import platforms
from envspec.snapshot import Interpreter, Libc
from tests.envspec.compare.make import MARKERS, snap

SHA = "a" * 64
HEAD = 'lock-version = "1.0"\ncreated-by = "test"\n'


def target(glibc: str = "2.36", python: str = "3.12.4", machine: str = "x86_64", **markers: str) -> Target:
    base = snap("x")
    assert base.interpreter is not None
    minor = ".".join(python.split(".")[:2])
    values = {**MARKERS, "python_full_version": python, "python_version": minor, "platform_machine": machine, **markers}
    interpreter = Interpreter(
        implementation="cpython",
        version=python,
        executable="/x",
        prefix="/x",
        base_prefix="/x",
        soabi=f"cpython-{minor.replace('.', '')}",
        platform=f"linux-{machine}",
    )
    return Target.of(snap("x", interpreter=interpreter, markers=values, libc=Libc(family="glibc", version=glibc)))


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def versions(lock: Lock, host: Target | None = None) -> dict[str, str | None]:
    return {name: item.version for name, item in lock.resolve(host or target()).packages.items()}


def wheel(name: str, tag: str, version: str = "1.0") -> str:
    file = f"{name}-{version}-{tag}.whl"
    return f'{{ name = "{file}", url = "https://files.example/{file}", hashes = {{ sha256 = "{SHA}" }} }}'


class TestTarget:
    @pytest.mark.skipif(sys.platform != "linux", reason="compares with the running Linux interpreter")
    def test_tags_of_this_interpreter_are_the_ones_packaging_gives(self) -> None:
        """Synthesised from the facts a probe tells, in the same order."""
        import platform
        import sysconfig

        libc, libc_version = platform.libc_ver()
        interpreter = Interpreter(
            implementation=sys.implementation.name,
            version=platform.python_version(),
            executable=sys.executable,
            prefix=sys.prefix,
            base_prefix=sys.base_prefix,
            soabi=sysconfig.get_config_var("SOABI"),
            platform=sysconfig.get_platform(),
            free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        )
        markers = {key: str(value) for key, value in default_environment().items()}
        here = Target.of(
            snap("x", interpreter=interpreter, markers=markers, libc=Libc(family=libc, version=libc_version))
        )
        assert here.tags is not None
        assert list(here.tags) == list(dict.fromkeys(sys_tags()))

    def test_manylinux_of_a_foreign_glibc(self) -> None:
        tags = list(platforms("linux-x86_64", "glibc", "2.17"))
        assert tags[:3] == ["linux_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"]
        assert tags[-2:] == ["manylinux_2_5_x86_64", "manylinux1_x86_64"]
        assert "manylinux2010_x86_64" in tags
        assert "manylinux_2_18_x86_64" not in tags

    def test_aarch64_begins_at_2_17(self) -> None:
        assert list(platforms("linux-aarch64", "glibc", "2.18")) == [
            "linux_aarch64",
            "manylinux_2_18_aarch64",
            "manylinux_2_17_aarch64",
            "manylinux2014_aarch64",
        ]

    def test_musl_and_mac_and_windows(self) -> None:
        assert list(platforms("linux-x86_64", "musl", "1.2"))[1:] == [f"musllinux_1_{n}_x86_64" for n in (2, 1, 0)]
        assert "macosx_12_0_arm64" in list(platforms("macosx-14.0-arm64", None, None))
        assert list(platforms("win-amd64", None, None)) == ["win_amd64"]

    def test_markers_that_are_not_known_are_not_taken_from_here(self, tmp_path: Path) -> None:
        """A marker that the host did not tell is undecided; the running interpreter's value is never used."""
        path = write(tmp_path, "r.lock", "six==1.0 ; sys_platform == 'linux'\nidna==3.0\n")
        resolved = load_lock(path).resolve(Target(markers={}))
        assert set(resolved.packages) == {"idna"}
        assert resolved.undecided == {"six"}


class TestRequirements:
    def test_hashes_markers_continuations_and_comments(self, tmp_path: Path) -> None:
        path = write(
            tmp_path,
            "requirements.lock",
            f"""\
            # made by a tool
            --index-url https://index.example/simple
            numpy==2.0.0 ; python_version >= '3.10' \\
                --hash=sha256:{SHA} \\
                --hash=sha256:{"B" * 64}
                # via demo
            tomli==2.0 ; python_version < '3.11'   # old
            Ruamel.Yaml == 0.18.6
            odd===2024a
            """,
        )
        lock = load_lock(path)
        assert versions(lock) == {"numpy": "2.0.0", "ruamel-yaml": "0.18.6", "odd": "2024a"}
        numpy = lock.packages[0]
        assert numpy.hashes == {f"sha256:{SHA}", f"sha256:{'b' * 64}"}
        assert numpy.index == "https://index.example/simple"
        assert [item.line for item in lock.packages] == [3, 7, 8, 9]

    def test_places(self, tmp_path: Path) -> None:
        commit = "c" * 40
        path = write(
            tmp_path,
            "requirements.txt",
            f"""\
            demo @ git+https://git.example/demo.git@{commit}
            fast @ https://files.example/fast-1.5-cp312-cp312-linux_x86_64.whl#sha256={SHA}
            -e git+https://git.example/edit.git@main#egg=edit
            ./local-0.3.tar.gz
            """,
        )
        demo, fast, edit, local = load_lock(path).packages
        assert demo.direct is not None
        assert (demo.direct.kind, demo.direct.commit, demo.direct.url) == (
            "vcs",
            commit,
            "https://git.example/demo.git",
        )
        assert (fast.name, fast.version) == ("fast", "1.5")
        assert fast.direct is not None
        assert fast.direct.hashes == {f"sha256:{SHA}"}
        assert edit.direct is not None
        assert (edit.name, edit.direct.editable, edit.direct.commit) == ("edit", True, None)
        assert (local.name, local.version) == ("local", "0.3")

    def test_includes(self, tmp_path: Path) -> None:
        write(tmp_path, "base.lock", "six==1.0\n")
        path = write(tmp_path, "all.lock", "-r base.lock\nidna==3.0\n")
        assert versions(load_lock(path)) == {"six": "1.0", "idna": "3.0"}
        write(tmp_path, "base.lock", "-r all.lock\n")
        with pytest.raises(UsageError, match="includes itself"):
            load_lock(path)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("numpy>=2\n", r"r.lock:1: 'numpy>=2' is not pinned to one version"),
            ("six==1.0\nnumpy==2.*\n", r"r.lock:2: .* is not pinned"),
            ("six == 1.0 garbage\n", r"r.lock:1: .* is not a requirement"),
            ("# nothing\n", r"lists no package"),
            ("six==1.0\nnumpy==1,==2\n", r"r.lock:2: 'numpy==1,==2' allows no version; a lock needs numpy==VERSION"),
            ("numpy==1,>=2\n", r"r.lock:1: 'numpy==1,>=2' allows no version"),
            ("numpy===banana\n", r"r.lock:1: 'numpy===banana' is not pinned to a version as PEP 440"),
            (f"numpy=={'9' * 5000}\n", r"r.lock:1: 'numpy==9+' is not pinned to a version"),
            (f"numpy==1,<{'9' * 5000}\n", r"r.lock:1: .* allows no version"),
            (f"six==1.0 --hash=sha256:{SHA}\nnumpy==1.0 \\\n", r"r.lock:2: nothing follows the backslash"),
            (f"six==1.0 \\\n  --hash=sha256:{SHA} \\\n", r"r.lock:1: nothing follows the backslash"),
            ("numpy==1.0 --hash=sha256:xyz\n", r"r.lock:1: '--hash=sha256:xyz' is no hash; expected"),
            ("numpy==1.0 --hash=sha256:00\n", r"r.lock:1: '--hash=sha256:00' is no hash"),
            (f"numpy==1.0 --hash=SHA256:{SHA}\n", r"r.lock:1: '--hash=SHA256:a+' is no hash"),
            (f"numpy==1.0 --hash={SHA}\n", r"r.lock:1: '--hash=a+' is no hash"),
            (f"numpy==1.0 --hash=sha256:{SHA} --hash\n", r"r.lock:1: '--hash=' is no hash"),
            (f"numpy==1.0 --hsah=sha256:{SHA}\n", r"r.lock:1: there is no option --hsah for a requirement; did you mean 'hash'"),
            ("x @ https://files.example/x-1.tar.gz#sha256=ab\n", r"r.lock:1: 'sha256=ab' is no hash"),
        ],
    )
    def test_what_is_no_lock(self, tmp_path: Path, text: str, message: str) -> None:
        with pytest.raises(UsageError, match=message) as caught:
            load_lock(write(tmp_path, "r.lock", text))
        assert len(str(caught.value)) < 400

    def test_a_comment_may_follow_the_last_backslash(self, tmp_path: Path) -> None:
        assert versions(load_lock(write(tmp_path, "r.lock", "six==1.0 \\\n    # via demo\n"))) == {"six": "1.0"}

    def test_each_included_file_is_read_once(self, tmp_path: Path) -> None:
        """Three files a level, each of which includes all of the next: 3 ** 13 ways lead to the last."""
        for level in range(13):
            for name in "abc":
                below = "".join(f"-r {other}{level + 1}.lock\n" for other in "abc") if level < 12 else ""
                write(tmp_path, f"{name}{level}.lock", f"{name}{level}==1.0\n{below}")
        assert len(load_lock(tmp_path / "a0.lock").packages) == 12 * 3 + 1

    @pytest.mark.parametrize("target", ["loop.lock", "x" * 300, "x/" * 2500, "a\0b", "a\ud800b"])
    def test_a_place_that_no_file_can_have(self, tmp_path: Path, target: str) -> None:
        (tmp_path / "loop.lock").symlink_to("loop.lock")
        with pytest.raises(UsageError, match="cannot read the lock") as caught:
            load_lock(tmp_path / target)
        str(caught.value).encode()
        with pytest.raises(UsageError, match="cannot read the lock"):
            load_role_locks(tmp_path / target, ["train", None])
        if "\ud800" not in target:
            with pytest.raises(UsageError, match="cannot read the lock"):
                load_lock(write(tmp_path, "r.lock", f"-r {target}\n"))


class TestPylock:
    def test_single_use(self, tmp_path: Path) -> None:
        path = write(
            tmp_path,
            "pylock.toml",
            HEAD
            + f"""\
[[packages]]
name = "fast"
version = "1.0"
index = "https://index.example/simple"
wheels = [{wheel("fast", "cp312-cp312-manylinux_2_39_x86_64")}, {wheel("fast", "cp312-cp312-manylinux_2_17_x86_64")}]

[[packages]]
name = "old"
version = "1.0"
marker = "python_version < '3.11'"
wheels = [{wheel("old", "py3-none-any")}]
""",
        )
        lock = load_lock(path)
        resolved = lock.resolve(target())
        assert resolved.chosen["fast"].name.endswith("manylinux_2_17_x86_64.whl")
        assert lock.resolve(target(glibc="2.40")).chosen["fast"].name.endswith("manylinux_2_39_x86_64.whl")
        assert set(resolved.packages) == {"fast"}
        assert [item.line for item in lock.packages] == [3, 9]
        (fault,) = lock.resolve(target(glibc="2.5")).faults
        assert (fault.kind, fault.name, fault.line) == ("no-wheel", "fast", 3)

    def test_every_fault_is_listed_not_the_first_only(self, tmp_path: Path) -> None:
        path = write(
            tmp_path,
            "pylock.toml",
            HEAD
            + 'requires-python = ">=3.13"\nenvironments = ["sys_platform == \'win32\'"]\n'
            + "".join(
                f'[[packages]]\nname = "{name}"\nversion = "1.0"\nwheels = [{wheel(name, "cp313-cp313-win_amd64")}]\n'
                for name in ("one", "two")
            ),
        )
        faults = load_lock(path).resolve(target()).faults
        assert [(fault.kind, fault.name) for fault in faults] == [
            ("python", None),
            ("environment", None),
            ("no-wheel", "one"),
            ("no-wheel", "two"),
        ]

    def test_two_versions_at_once(self, tmp_path: Path) -> None:
        text = "".join(
            f'[[packages]]\nname = "six"\nversion = "{v}"\nwheels = [{wheel("six", "py3-none-any", v)}]\n'
            for v in ("1.0", "2.0")
        )
        resolved = load_lock(write(tmp_path, "pylock.toml", HEAD + text)).resolve(target())
        assert [fault.kind for fault in resolved.faults] == ["ambiguous"]
        assert resolved.packages["six"].version == "1.0"

    def test_role_is_group_then_extra_then_default(self, tmp_path: Path) -> None:
        entries = {
            "always": "",
            "train": "'training' in dependency_groups",
            "infer": "'inference' in dependency_groups",
            "fast": "'speed' in extras",
            "base": "'main' in dependency_groups",
        }
        text = HEAD + 'extras = ["speed"]\ndependency-groups = ["training", "inference"]\ndefault-groups = ["main"]\n'
        for name, marker in entries.items():
            condition = f'marker = "{marker}"\n' if marker else ""
            text += (
                f'[[packages]]\nname = "{name}"\nversion = "1.0"\n{condition}wheels = [{wheel(name, "py3-none-any")}]\n'
            )
        path = write(tmp_path, "pylock.toml", text)
        assert set(versions(load_lock(path))) == {"always", "base"}
        assert set(versions(load_lock(path, "Training"))) == {"always", "train"}
        assert set(versions(load_lock(path, "inference"))) == {"always", "infer"}
        assert set(versions(load_lock(path, "speed"))) == {"always", "fast", "base"}
        assert set(versions(load_lock(path, "unknown"))) == {"always", "base"}

    def test_a_lock_that_selects_nothing_for_a_host_is_no_match(self, tmp_path: Path) -> None:
        text = HEAD + 'dependency-groups = ["training", "inference"]\ndefault-groups = []\n'
        text += f"[[packages]]\nname = \"train\"\nversion = \"1.0\"\nmarker = \"'training' in dependency_groups\"\nwheels = [{wheel('train', 'py3-none-any')}]\n"
        lock = load_lock(write(tmp_path, "pylock.toml", text))
        (fault,) = lock.resolve(target()).faults
        assert (fault.kind, fault.name) == ("group", None)
        assert fault.message.endswith("give the host one as its role: inference, training")
        assert load_lock(tmp_path / "pylock.toml", "training").resolve(target()).faults == ()
        windows = HEAD + f"[[packages]]\nname = \"a\"\nversion = \"1.0\"\nmarker = \"sys_platform == 'win32'\"\nwheels = [{wheel('a', 'py3-none-any')}]\n"
        (fault,) = load_lock(write(tmp_path, "pylock.toml", windows)).resolve(target()).faults
        assert fault.message.endswith("each of its entries is for another environment")

    def test_role_lookup_order_in_a_directory(self, tmp_path: Path) -> None:
        entry = '[[packages]]\nname = "six"\nversion = "{0}"\nwheels = [{1}]\n'
        for name, version in (("pylock.toml", "1.0"), ("pylock.infer.toml", "2.0")):
            write(tmp_path, name, HEAD + entry.format(version, wheel("six", "py3-none-any", version)))
        assert versions(load_lock(tmp_path, "infer")) == {"six": "2.0"}
        assert versions(load_lock(tmp_path, "train")) == {"six": "1.0"}
        locks = load_role_locks(tmp_path, ["train", "infer"])
        assert [(lock.role, Path(lock.lock.path).name) for lock in locks] == [
            ("infer", "pylock.infer.toml"),
            (None, "pylock.toml"),
        ]

    def test_sources(self, tmp_path: Path) -> None:
        path = write(
            tmp_path,
            "pylock.toml",
            HEAD
            + f"""\
[[packages]]
name = "vcs"
vcs = {{ type = "git", url = "https://git.example/v", commit-id = "{"D" * 40}" }}
[[packages]]
name = "tree"
directory = {{ path = ".", editable = true }}
[[packages]]
name = "archive"
version = "1.0"
archive = {{ url = "https://files.example/archive-1.0.tar.gz", hashes = {{ sha256 = "{SHA}" }} }}
""",
        )
        vcs, tree, archive = (item.direct for item in load_lock(path).packages)
        assert vcs is not None
        assert (vcs.kind, vcs.commit) == ("vcs", "d" * 40)
        assert tree is not None
        assert (tree.kind, tree.editable) == ("directory", True)
        assert archive is not None
        assert (archive.kind, archive.hashes) == ("archive", {f"sha256:{SHA}"})

    def test_variant_wheel_does_not_fail_the_file(self, tmp_path: Path) -> None:
        """PEP 825 adds a label to the file name, which the wheel parser of today refuses for the whole lock."""
        text = HEAD + (
            f'[[packages]]\nname = "torch"\nversion = "2.9.1"\nwheels = [{wheel("torch", "cp312-cp312-linux_x86_64-cu128", "2.9.1")}]\n'
            f'[[packages]]\nname = "six"\nversion = "1.0"\nwheels = [{wheel("six", "py3-none-any")}, {wheel("six", "py3-none-any-x86_64_v3")}]\n'
        )
        lock = load_lock(write(tmp_path, "pylock.toml", text))
        resolved = lock.resolve(target())
        assert versions(lock) == {"torch": "2.9.1", "six": "1.0"}
        assert resolved.faults == ()
        assert resolved.chosen["torch"].opaque
        assert resolved.chosen["six"].name == "six-1.0-py3-none-any.whl"
        assert lock.packages[0].hashes == {f"sha256:{SHA}"}
        assert "PEP 825" in lock.notes[0]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (HEAD, "no 'packages' array: it is cut short"),
            (HEAD + "packages = []\n", "lists no package"),
            (HEAD + f'[[packages]]\nname = "six"\nversion = "1"\nwheels = [{wheel("six", "py3-none-any").replace(SHA, "ab")}]\n', r"packages\[0\].wheels\[0\].hashes: 'sha256:ab' is no hash"),
            (HEAD + f'[[packages]]\nname = "six"\nversion = "1"\nwheels = [{wheel("six", "py3-none-any").replace("sha256", "blake3")}]\n', r"packages\[0\].wheels\[0\].hashes: 'blake3:' is no hash"),
            (HEAD + f'requires-python = ">={"9" * 5000}"\n[[packages]]\nname = "six"\nversion = "1"\nwheels = [{wheel("six", "py3-none-any")}]\n', "not valid: Invalid specifier: a number in it is too long"),
            (HEAD.replace("1.0", "9" * 5000) + "packages = [{}]\n", "not valid"),
            ("lock-version = '2.0'\ncreated-by = 'x'\npackages = []\n", "version this program cannot read"),
            (HEAD + "packages = [{ version = '1.0' }]\n", r"packages\[0\].*name|name.*packages\[0\]"),
            (HEAD + "packages = 3\n", "not valid"),
            (HEAD + '[[packages]]\nname = "Six"\nversion = "1"\n', "not valid"),
            ("= nonsense", "not valid TOML"),
        ],
    )
    def test_bad_files(self, tmp_path: Path, text: str, message: str) -> None:
        with pytest.raises(UsageError, match=message) as caught:
            load_lock(write(tmp_path, "pylock.toml", text))
        assert "pylock.toml" in str(caught.value)

    def test_a_hash_of_another_algorithm_may_stand_beside_a_known_one(self, tmp_path: Path) -> None:
        entry = wheel("six", "py3-none-any").replace("{ sha256", '{ blake3 = "00", sha256')
        lock = load_lock(write(tmp_path, "pylock.toml", HEAD + f'[[packages]]\nname = "six"\nversion = "1"\nwheels = [{entry}]\n'))
        assert lock.packages[0].hashes == {f"sha256:{SHA}"}

    def test_a_newer_minor_version_is_a_remark_of_the_lock(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        text = HEAD.replace("1.0", "1.9") + f'[[packages]]\nname = "six"\nversion = "1"\nwheels = [{wheel("six", "py3-none-any")}]\n'
        assert load_lock(write(tmp_path, "pylock.toml", text)).notes == (
            "pylock.toml: lock-version 1.9 is read as 1.0, the newest that this program knows",
        )
        assert caplog.records == []


UV = """\
version = 1
revision = 5
requires-python = ">=3.10"
conflicts = [[{ package = "demo", group = "inference" }, { package = "demo", group = "training" }]]

[[package]]
name = "demo"
version = "0.1"
source = { virtual = "." }
dependencies = [
    { name = "base", extra = ["more"] },
    { name = "tomli", marker = "python_full_version < '3.11'" },
    { name = "idna", version = "3.6", source = { registry = "https://index.example/simple" }, marker = "extra == 'group-4-demo-training'" },
    { name = "idna", version = "3.7", source = { registry = "https://index.example/simple" }, marker = "extra == 'group-4-demo-inference' or extra != 'group-4-demo-training'" },
]

[package.optional-dependencies]
fast = [{ name = "speed" }]

[package.dev-dependencies]
dev = [{ name = "pytest" }]
inference = [{ name = "server" }]
training = [{ name = "trainer" }]

[[package]]
name = "base"
version = "1.0"
source = { registry = "https://index.example/simple" }
dependencies = [{ name = "cycle" }]

[package.optional-dependencies]
more = [{ name = "extra-dep" }]

[[package]]
name = "cycle"
version = "1.0"
source = { registry = "https://index.example/simple" }
dependencies = [{ name = "base" }]

[[package]]
name = "idna"
version = "3.6"
source = { registry = "https://index.example/simple" }

[[package]]
name = "idna"
version = "3.7"
source = { registry = "https://index.example/simple" }

[[package]]
name = "git-dep"
version = "0.5"
source = { git = "https://git.example/g?rev=main#0123456789012345678901234567890123456789" }
""" + "".join(
    f'\n[[package]]\nname = "{name}"\nversion = "1.0"\nsource = {{ registry = "https://index.example/simple" }}\n'
    for name in ("tomli", "speed", "pytest", "server", "trainer", "extra-dep")
)


class TestUvLock:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return write(tmp_path, "uv.lock", UV)

    def test_default_role_takes_dev(self, path: Path) -> None:
        assert versions(load_lock(path)) == {
            "base": "1.0",
            "extra-dep": "1.0",
            "cycle": "1.0",
            "idna": "3.7",
            "pytest": "1.0",
        }

    def test_conflicting_groups(self, path: Path) -> None:
        training, inference = (versions(load_lock(path, role)) for role in ("training", "inference"))
        assert (training["idna"], inference["idna"]) == ("3.6", "3.7")
        assert "trainer" in training
        assert "server" in inference
        assert "pytest" not in training

    def test_extra_and_markers(self, path: Path) -> None:
        assert "speed" in versions(load_lock(path, "fast"))
        assert "tomli" in versions(load_lock(path), target(python="3.10.2"))

    def test_git_source(self, path: Path) -> None:
        package = next(item for item in load_lock(path).packages if item.name == "git-dep")
        assert package.direct is not None
        assert package.direct.commit == "0123456789012345678901234567890123456789"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("version = 1\n", "no 'package' array"),
            ("version = 2\n", "version 2"),
            ("version = 1\n[[package]]\nversion = '1'\n", r"package\[0\]: expected a table with a 'name'"),
            (
                "version = 1\n[[package]]\nname='a'\ndependencies=[{name='b', marker='%%'}]\n",
                r"package\[0\].dependencies\[0\].marker",
            ),
            ("version = 1\npackage = []\n", "lists no package"),
            (
                "version = 1\n[[package]]\nname='a'\ndependencies=[{name='b', marker=5}]\n",
                r"package\[0\].dependencies\[0\].marker: expected a string",
            ),
            (
                "version = 1\n[[package]]\nname='a'\ndependencies=[{name='a', version=5}]\n",
                r"package\[0\].dependencies\[0\].version: expected a string",
            ),
            ("version = 1\n[[package]]\nname='a'\nsdist=5\n", r"package\[0\]: expected wheels and sdist to be tables"),
            ("version = 1\n[[package]]\nname='a'\nwheels=5\n", r"package\[0\].wheels: expected an array"),
            ("version = 1\n[[package]]\nname='a b'\n", r"package\[0\].name: 'a b' is not a package name"),
            ("version = 1\n[[package]]\nname='a'\nversion='1 --index-url=x #'\n", r"package\[0\].version: .* is not a version"),
            (f"version = 1\n[[package]]\nname='a'\nversion='{'9' * 5000}'\n", r"package\[0\].version: .* is not a version"),
            (f"version = 1\nrequires-python='>={'9' * 5000}'\n[[package]]\nname='a'\n", r"requires-python: .* is not a version spec"),
            (f"version = {'1' * 5000}\n", "not valid TOML: Exceeds the limit"),
            ("a = " + "[" * 30000, "not valid TOML"),
        ],
    )
    def test_bad_files(self, tmp_path: Path, text: str, message: str) -> None:
        with pytest.raises(UsageError, match=message) as caught:
            load_lock(write(tmp_path, "uv.lock", text))
        assert len(str(caught.value)) < 400
        assert "set_int_max" not in str(caught.value)

    @pytest.mark.parametrize(
        "text", ["xx", "sha256:x --index-url=https://other.example", "sha256:00", f"SHA256:{SHA}", f"sha999:{SHA}", SHA]
    )
    def test_a_hash_that_is_none_is_not_left_out(self, tmp_path: Path, text: str) -> None:
        wheels = f'wheels = [{{ url = "https://files.example/x-1-py3-none-any.whl", hash = "{text}" }}]'
        entry = f'[[package]]\nname = "x"\nversion = "1"\n{wheels}\n'
        with pytest.raises(UsageError, match=r"uv\.lock: package\[0\]: the hash .* is none; expected"):
            load_lock(write(tmp_path, "uv.lock", f"version = 1\n{entry}"))
        with pytest.raises(UsageError, match=r"package\[0\]\.hash: expected a string"):
            load_lock(write(tmp_path, "uv.lock", f"version = 1\n{entry}".replace(f'"{text}"', "5")))

    def test_a_lock_cut_between_two_entries_is_not_whole(self, tmp_path: Path) -> None:
        """Wherever it is cut: what is left names what is gone, whether or not this host needs it."""
        whole = UV.split("\n[[package]]\n")
        for count in range(2, len(whole)):
            cut = "\n[[package]]\n".join(whole[:count])
            with pytest.raises(UsageError, match=r"package\[\d\]\..*: the lock holds no .*: the file is cut short"):
                load_lock(write(tmp_path, "uv.lock", cut))
        load_lock(write(tmp_path, "uv.lock", "\n[[package]]\n".join(whole)))

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ('"idna", version = "3.6"', '"idna", version = "3.8"', r"package\[0\].dependencies\[2\]: the lock holds no idna 3.8:"),
            (
                '"3.6", source = { registry = "https://index.example/simple" }, marker',
                '"3.6", source = { registry = "https://other.example/simple" }, marker',
                r"package\[0\].dependencies\[2\]: the lock holds no idna 3.6 from the source that it names:",
            ),
            ('{ name = "speed" }', '{ name = "spead" }', r"package\[0\].optional-dependencies.fast\[0\]: the lock holds no spead:"),
            ('{ name = "trainer" }', '{ name = "coach" }', r"package\[0\].dev-dependencies.training\[0\]: the lock holds no coach:"),
            ("revision = 5", '[manifest]\nmembers = ["demo", "zed"]', r"manifest.members: the lock holds no zed:"),
        ],
    )
    def test_an_edge_without_an_end_is_named(self, tmp_path: Path, old: str, new: str, message: str) -> None:
        assert old in UV
        text = UV.replace(old, new, 1)
        if "manifest" in new:
            text = text.replace(new + "\n", "").replace("\n[[package]]", f"\n{new}\n\n[[package]]", 1)
        with pytest.raises(UsageError, match=message):
            load_lock(write(tmp_path, "uv.lock", text))


def test_lock_of_an_environment_made_by_uv(tmp_path: Path) -> None:
    """uv's own pylock and requirements exports of one uv.lock agree with the walk of its graph, offline."""
    for name, needs in (("lib", ""), ("app", '"lib"')):
        folder = tmp_path / name
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("")
        sources = '[tool.uv.sources]\nlib = { path = "../lib" }\n' if needs else ""
        (folder / "pyproject.toml").write_text(
            f'[project]\nname = "{name}"\nversion = "1.0"\nrequires-python = ">=3.10"\ndependencies = [{needs}]\n{sources}'
        )
    app = tmp_path / "app"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "lock", "--offline", "-q"], cwd=app, check=True)
    subprocess.run(
        [*uv, "export", "--offline", "-q", "--format", "pylock.toml", "-o", "pylock.toml"], cwd=app, check=True
    )
    walked = load_lock(app / "uv.lock").resolve(target())
    exported = load_lock(app / "pylock.toml").resolve(target())
    assert set(walked.packages) - {"app"} == set(exported.packages) - {"app"} == {"lib"}
    assert walked.packages["lib"].direct is not None


def test_missing_file_and_wrong_kind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the lock"):
        load_lock(tmp_path / "none.lock")
    with pytest.raises(UsageError, match=r"there is no pylock\.toml, uv\.lock or requirements\.lock"):
        load_lock(tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    with pytest.raises(UsageError, match="is a project, not a lock"):
        load_lock(tmp_path / "pyproject.toml")
    (tmp_path / "bytes.lock").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        load_lock(tmp_path / "bytes.lock")


def test_a_url_that_is_none(tmp_path: Path) -> None:
    """The address is only read for its file name; one that is broken is refused or left alone, never a traceback."""
    text = UV + '\n[[package]]\nname = "x"\nversion = "1"\nsource = { registry = "r" }\nwheels = [{ url = "https://]/x-1-py3-none-any.whl" }]\n'
    assert versions(load_lock(write(tmp_path, "uv.lock", text)))["base"] == "1.0"
    entry = '[[packages]]\nname = "six"\nversion = "1.0"\nwheels = [{ url = "https://]/six-1.0-py3-none-any.whl", hashes = { sha256 = "SHA" } }]\n'.replace("SHA", SHA)
    with pytest.raises(UsageError, match=r"pylock\.toml is not valid"):
        load_lock(write(tmp_path, "pylock.toml", HEAD + entry))


NAMES = ("pylock.toml", "uv.lock", "requirements.lock")
SEEDS = {
    "pylock.toml": HEAD
    + f'[[packages]]\nname = "six"\nversion = "1.0"\nmarker = "os_name == \'nt\'"\nwheels = [{wheel("six", "py3-none-any")}]\n',
    "uv.lock": UV
    + f'wheels = [{{ url = "https://files.example/extra_dep-1.0-py3-none-any.whl", hash = "sha256:{SHA}" }}]\n',
    "requirements.lock": f"six==1.0 ; os_name == 'nt' --hash=sha256:{SHA}\n-e ./x\ndemo @ git+https://x.example/y@{'a' * 40}\n",
}


HOSTILE = (
    "9" * 5000,
    "[" * 3000,
    "a = " + "[" * 3000,
    "(" * 3000,
    " --hash=sha256:xyz",
    " --hash=sha256:00",
    f" --hash=SHA256:{SHA}",
    f" --hsah=sha256:{SHA}",
    " --index-url=https://other.example",
    "===banana",
    ",==2",
    " \\\n",
    "\n[[package]]\n",
    '\nmarker = 5\n',
    '\nhash = "xx"\n',
    '\nlock-version = "1.9"\n',
    "\n-r missing.lock\n",
    "\n-r a\0b\n",
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(NAMES), st.data())
def test_a_damaged_lock_is_read_or_refused_in_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    """Cut, spliced and noisy files: never another exception, never an empty lock out of a cut one."""
    seed = SEEDS[name]
    start = data.draw(st.integers(0, len(seed)))
    end = data.draw(st.integers(start, len(seed)))
    noise = st.text(alphabet=" \n[]{}=\"'#\\,.;:abc019-%\x00\u2028", max_size=12)
    filler = data.draw(st.sampled_from(HOSTILE) | noise)
    path = tmp_path_factory.mktemp("fuzz") / name
    path.write_text(seed[:start] + filler + seed[end:], encoding="utf-8")
    try:
        lock = load_lock(path)
        lock.resolve(target())
    except UsageError as error:
        refused = str(error)
        assert "\n" not in refused
        assert str(path.parent) in refused  # the file, or one that it includes
        refused.encode()
        return
    assert lock.kind == "uv" or lock.packages
    for package in lock.packages:
        assert package.version is None or package.parsed is not None
        assert all(re.fullmatch(r"(sha1|sha224|sha256|md5):[0-9a-f]{32,64}", value) for value in package.hashes)
        assert lock.kind != "uv" or {*package.requires} <= {*lock.names, "demo"}
    if lock.kind == "requirements":
        hashed = {number for number, line in logical_lines(path.read_text(encoding="utf-8")) if " --hash" in line and line[0] != "-"}
        assert hashed <= {package.line for package in lock.packages if package.hashes}
