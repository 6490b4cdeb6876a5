"""envspec.yaml: everything it can say is read, and every mistake names file, line and key path."""

from __future__ import annotations

import textwrap
from datetime import date
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from envspec.errors import UsageError
from envspec.spec import find_spec, init_text, load_spec

FULL = """\
version: 1
hosts:
  laptop: local
  gpu-a:
    target: user@gpu-a:~/env/bin/python3
    role: infer
lock: pylock.toml
requires: [Torch]
versions:
  torch: ">=2.9,<2.11"
roles:
  train: {lock: train.lock, scripts: [scripts/train.py, -m tools.check]}
  infer:
    lock: infer.lock
    baseline: gpu-a
    requires: [speculators, Flash_Attn]
    versions: {torch: "==2.10.*"}
    scripts: scripts/serve.py
declared:
  - package: Transformers
    roles: [train, infer]
    reason: the server pins its own
  - variable: NCCL_*
ignore:
  - code: ep304
    subject: "*"
    hosts: [gpu-*]
    reason: updated in spring
    until: 2027-03-31
severity:
  EP203: breaks
fail-on: results
"""


def write(folder: Path, text: str, name: str = "envspec.yaml") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def test_everything_is_read(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, FULL))
    assert spec.hosts["laptop"].target == "local"
    assert (spec.hosts["gpu-a"].target, spec.hosts["gpu-a"].role) == ("user@gpu-a:~/env/bin/python3", "infer")
    assert spec.required("infer") == ("torch", "speculators", "flash-attn")
    assert spec.required("unknown") == ("torch",)
    assert str(spec.policies("infer")["torch"]) == "==2.10.*"
    assert "2.10.1" in spec.policies("train")["torch"]
    assert spec.roles["infer"].scripts == ("scripts/serve.py",)
    assert spec.baseline_of("infer") == "gpu-a"
    assert spec.declaration("package", "transformers", ["train", "infer"]) is spec.declared[0]
    assert spec.declaration("package", "transformers", ["train", "other"]) is None
    assert spec.declaration("variable", "NCCL_ALGO", ["a", "b"]) is spec.declared[1]
    assert spec.declaration("variable", "NCCL_ALGO", ["a", None]) is None
    (ignore,) = spec.ignores
    assert (ignore.code, ignore.until, ignore.line) == ("EP304", date(2027, 3, 31), 25)
    assert (spec.severity[0].code, spec.severity[0].severity) == ("EP203", "breaks")
    assert spec.fail_on == "results"
    assert spec.root == tmp_path


def test_pyproject_table(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """\
        [project]
        name = "demo"
        [tool.envspec]
        fail-on = "any"
        [tool.envspec.hosts]
        gpu = "user@gpu"
        [tool.envspec.roles.infer]
        requires = ["speculators"]
        [[tool.envspec.ignore]]
        code = "EP304"
        reason = "known"
        until = 2027-03-31
        """,
        "pyproject.toml",
    )
    spec = load_spec(path)
    assert spec.required("infer") == ("speculators",)
    assert spec.ignores[0].until == date(2027, 3, 31)
    assert spec.ignores[0].line == 9
    assert find_spec(tmp_path) == path
    assert find_spec(write(tmp_path, "version: 1\n").parent) == tmp_path / "envspec.yaml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hots: {}\n", r"envspec.yaml:1: hots: there is no such key; did you mean 'hosts'"),
        ("version: 2\n", r":1: version: expected 1, found 2"),
        ("hosts:\n  a: {role: x}\n", r":2: hosts.a: the key 'target' is missing"),
        ("hosts:\n  a: {target: 3}\n", r":2: hosts.a.target: expected text, found a number"),
        ("hosts:\n  a: -oProxyCommand=x\n", r":2: hosts.a: '-oProxyCommand=x' is not a host"),
        (
            "roles: {infer: {}}\nhosts:\n  a:\n    target: local\n    role: infr\n",
            r":5: hosts.a.role: there is no role 'infr'; did you mean 'infer'",
        ),
        ("hosts: [a]\n", r":1: hosts: expected a table, found a list"),
        (
            "roles:\n  infer:\n    versions:\n      torch: 2.9\n",
            r":4: roles.infer.versions.torch: expected a specifier in quotes",
        ),
        ("versions:\n  torch: 'about 2'\n", r":2: versions.torch: 'about 2' is not a version specifier"),
        (
            "requires: ['torch>=2']\n",
            r":1: requires\[0\]: 'torch>=2' is not a package name; versions go under 'versions'",
        ),
        ("ignore:\n  - code: EP999\n    reason: x\n", r":2: ignore\[0\].code: there is no finding code 'EP999'"),
        ("ignore:\n  - code: EP304\n", r":2: ignore\[0\]: the key 'reason' is missing"),
        (
            "ignore:\n  - {code: EP304, reason: x, until: soon}\n",
            r":2: ignore\[0\].until: expected a date such as 2027-01-31, found 'soon'",
        ),
        ("severity:\n  EP304: fatal\n", r":2: severity.EP304: expected breaks, results or noise, found 'fatal'"),
        ("declared:\n  - roles: [a]\n", r":2: declared\[0\]: expected one of package"),
        (
            "roles: {a: {}}\ndeclared:\n  - {package: x, roles: [b]}\n",
            r":3: declared\[0\].roles\[0\]: there is no role 'b'",
        ),
        ("fail-on: sometimes\n", r":1: fail-on: expected breaks, results, any or never"),
        ("lock: a\nlock: b\n", r":2: lock: this key stands twice"),
        ("hosts:\n\t a: b\n", r"envspec.yaml:2: this is not valid YAML"),
        ("- a\n", r"envspec.yaml: expected a table, found a list"),
        ("a: &x [*x]\n", r"refers to itself"),
        ("1: x\n", r"the key 1 is not text"),
        ("hosts: !!python/object:os.system {}\n", r"not valid YAML"),
        ("a: 1\nlock: !!timestamp foo\n", r"envspec.yaml:2: lock: 'foo' cannot be read as timestamp; put it in quotes"),
        ("lock: !!bool foo\n", r":1: lock: 'foo' cannot be read as bool"),
        ('roles:\n  - !!int ""\n', r":2: roles\[0\]: '' cannot be read as int"),
        ('!!int "": 1\n', r":1: '' cannot be read as int"),
        ("lock: !!timestamp {=: foo}\n", r"a value does not fit its tag"),
        ("version: " + "9" * 5000 + "\n", r":1: version: '9+' cannot be read as int"),
        ("until: 2027-02-31\n", r":1: until: '2027-02-31' cannot be read as timestamp"),
        ("? [a]\n: b\n", r"a key of this table is not text"),
        ('lock: "a\\ud800b"\n', r":1: lock: 'a\\ud800b' holds half of a character"),
        ('"a\\ud800b": 1\n', r":1: a\\ud800b: .* holds half of a character"),
        ('"a\\nb": 1\n', r":1: a\\nb: there is no such key"),
        ("a: " + "[" * 3000 + "\n", r"nested too deeply"),
        ('lock: "a\\0b"\n', r":1: lock: 'a\\x00b' is not a path"),
        ("lock: ''\n", r":1: lock: '' is not a path"),
        ("lock: " + "x/" * 2500 + "\n", r":1: lock: 'x/[x/]+'… is longer than a path can be"),
        ("roles:\n  a:\n    lock: " + "x" * 300 + "\n", r":3: roles.a.lock: 'x+'… is longer than a path can be"),
        ("roles:\n  a:\n    baseline: " + "x" * 5000 + "\n", r":3: roles.a.baseline: .* is longer"),
        ("roles:\n  a:\n    scripts:\n      - s.py\n      - " + "x" * 5000 + "\n", r":5: roles.a.scripts\[1\]: .* is longer"),
        ("hosts:\n  a: " + "x" * 5000 + "\n", r":2: hosts.a: .* is longer"),
        (f'versions:\n  torch: ">={"9" * 5000}"\n', r":2: versions.torch: .* is not a version specifier"),
        (
            "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)),
            r"envspec.yaml:6: a5: this stands for more than 100,000 values",
        ),
        (
            "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)),
            r"this stands for more than 100,000 values",
        ),
        ("roles: {a: &a {requires: [1]}, b: *a}\n", r":1: roles.a.requires\[0\]: expected text"),
        ("requires: &a [torch]\nroles:\n  a:\n    requires: *a\n    versions: *a\n", r":5: roles.a.versions: expected a table"),
    ],
)
def test_a_mistake_names_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_spec(write(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    str(caught.value).encode()


def test_aliases_are_read(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, "roles:\n  a: &a {requires: [torch]}\n  b: *a\n  c:\n    <<: *a\n    lock: x.lock\n"))
    assert {role: rule.requires for role, rule in spec.roles.items()} == dict.fromkeys("abc", ("torch",))
    assert spec.roles["c"].lock == "x.lock"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'[tool.envspec\nfail-on="any"', r"pyproject.toml: this is not valid TOML: .*line 1"),
        (b'[tool . "envspec"]\na = \n', r"not valid TOML"),
        (b"[tool.envspec]\n# \xff\n", r"not UTF-8 text \(byte 17\)"),
        (b"[tool.envspec]\na = 1\na = 2\n", r"not valid TOML: .*line 3"),
        (b"[tool.envspec]\nx = " + b"[" * 30000, r"not valid TOML"),
        (b"[tool.envspec]\nversion = " + b"9" * 5000, r"not valid TOML: Exceeds the limit"),
        (b"[tool]\nenvspec = 3\n", r"pyproject.toml:2: expected a table|pyproject.toml: expected a table"),
        (b'[tool.envspec]\nlock = "a\\u0000b"\n', r"pyproject.toml:2: lock: 'a\\x00b' is not a path"),
    ],
)
def test_a_damaged_project_that_mentions_the_table_is_not_passed_over(
    tmp_path: Path, data: bytes, message: str
) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_bytes(data)
    assert find_spec(tmp_path) == path
    with pytest.raises(UsageError, match=message) as caught:
        load_spec(path)
    assert "\n" not in str(caught.value)
    assert "set_int_max" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [b"tool = 1\n", b"[tool]\n", b"[project\n", b"# \xff\n", b"x = " + b"[" * 30000, b"[tool.other]\na = 1\na = 2\n"],
)
def test_another_project_is_none_of_ours_whatever_its_state(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "pyproject.toml").write_bytes(data)
    assert find_spec(tmp_path) is None


def test_a_project_with_a_byte_order_mark_is_found(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_bytes(b"\xef\xbb\xbf[tool.envspec]\nfail-on = 'any'\n")
    assert find_spec(tmp_path) == path
    assert load_spec(path).fail_on == "any"


def test_a_mistake_in_toml_names_line_and_key(tmp_path: Path) -> None:
    path = write(tmp_path, '[tool.envspec]\n[tool.envspec.roles.infer]\nversions = { torch = "x" }\n', "pyproject.toml")
    with pytest.raises(UsageError, match=r"pyproject.toml:3: roles.infer.versions.torch: 'x' is not a version"):
        load_spec(path)
    with pytest.raises(UsageError, match="not valid TOML"):
        load_spec(write(tmp_path, "[[", "pyproject.toml"))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the spec"):
        load_spec(tmp_path / "none.yaml")
    assert find_spec(tmp_path) is None


def test_init_reads_back(tmp_path: Path) -> None:
    """What init writes is what was found, and it is a valid spec."""
    text = init_text(
        [("gpu-a", "user@gpu:~/env/bin/python3", "infer"), ("here", "local", "train"), ("odd", "image:a: #b", None)],
        locks={"train": "docker/train.lock", None: "uv.lock"},
        scripts={"infer": ["scripts/serve.py"]},
    )
    spec = load_spec(write(tmp_path, text))
    assert {name: (item.target, item.role) for name, item in spec.hosts.items()} == {
        "gpu-a": ("user@gpu:~/env/bin/python3", "infer"),
        "here": ("local", "train"),
        "odd": ("image:a: #b", None),
    }
    assert spec.lock == "uv.lock"
    assert spec.roles["train"].lock == "docker/train.lock"
    assert spec.roles["infer"].scripts == ("scripts/serve.py",)
    assert load_spec(write(tmp_path, init_text())).hosts == {}
    examples = [line for line in text.splitlines() if line.startswith("#  ")]
    assert examples, "the commented examples are there"
    declared = "\n".join(line[1:].replace("#", " #") for line in examples)
    assert yaml.safe_load(declared)


names = st.text(min_size=1, max_size=12).filter(
    lambda text: text.strip() and not text.startswith("-") and all(ord(c) >= 32 for c in text)
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(names, names, st.none() | st.sampled_from(["train", "infer"])),
        max_size=3,
        unique_by=lambda item: item[0],
    )
)
def test_init_quotes_whatever_it_is_given(
    tmp_path_factory: pytest.TempPathFactory, hosts: list[tuple[str, str, str | None]]
) -> None:
    hosts = [
        (name, target, role)
        for name, target, role in hosts
        if all(ord(c) < 0xD800 and ord(c) not in range(0x7F, 0xA0) for c in name + target)
    ]
    path = tmp_path_factory.mktemp("init") / "envspec.yaml"
    path.write_text(init_text(hosts), encoding="utf-8")
    assert {(item.name, item.target, item.role) for item in load_spec(path).hosts.values()} == set(hosts)


HOSTILE = (
    "!!timestamp foo",
    "!!bool foo",
    '!!int ""',
    "!!timestamp {=: foo}",
    "!!set [a]",
    "&a [*a, *a]",
    "<<: 3",
    "? {a: b}",
    '"a\\0b"',
    '"\\ud800"',
    '"a\\nb": 1',
    "2027-02-31",
    "9" * 5000,
    "x" * 5000,
    "[" * 3000,
)


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_a_damaged_spec_is_read_or_refused_in_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(FULL)))
    end = data.draw(st.integers(start, len(FULL)))
    noise = st.text(alphabet=" \n[]{}:-'\"#&*!|>%@`\\\t\x00\x85abc019", max_size=10)
    filler = data.draw(st.sampled_from(HOSTILE).map(lambda text: f" {text}\n") | st.sampled_from(HOSTILE) | noise)
    path = tmp_path_factory.mktemp("fuzz") / "envspec.yaml"
    path.write_text(FULL[:start] + filler + FULL[end:], encoding="utf-8")
    assert_read_or_refused(path)


def assert_read_or_refused(path: Path) -> None:
    try:
        spec = load_spec(path)
    except UsageError as error:
        refused = str(error)
        assert "\n" not in refused
        assert path.name in refused
        refused.encode()
        return
    roles = spec.roles.values()
    places = [host.target for host in spec.hosts.values()]
    for place in (spec.lock, *places, *(p for role in roles for p in (role.lock, role.baseline, *role.scripts))):
        (path.parent / (place or "")).exists()  # the system answers, whatever the place
    for policy in (*spec.versions.values(), *(item for role in roles for item in role.versions.values())):
        policy.contains("1.0")


PROJECT = """\
[project]
name = "demo"
[tool.envspec]
fail-on = "any"
lock = "a.lock"
[tool.envspec.roles.infer]
requires = ["speculators"]
versions = { torch = ">=2" }
[[tool.envspec.ignore]]
code = "EP304"
reason = "known"
until = 2027-03-31
"""
HOSTILE_TOML = ("9" * 5000, "x" * 5000, "[" * 3000, "a = " + "[" * 3000, '"a\\u0000b"', "\nname = 1\n", "2027-02-31", "\\")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_project_is_read_or_refused_and_never_passed_over(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(PROJECT)))
    end = data.draw(st.integers(start, len(PROJECT)))
    noise = st.text(alphabet=" \n[]{}.=-'\"#\\\t\x00abc019", max_size=10)
    filler = data.draw(st.sampled_from(HOSTILE_TOML) | noise)
    path = tmp_path_factory.mktemp("fuzz") / "pyproject.toml"
    text = PROJECT[:start] + filler + PROJECT[end:]
    path.write_bytes(text.encode() + data.draw(st.sampled_from([b"", b"#\xff"])))
    found = find_spec(path.parent)
    assert found == path or not any(line.startswith("[tool.envspec]") for line in text.split("\n")) or '"""' in text or "'''" in text
    assert_read_or_refused(path)
