"""Algebra of the comparison: equal things do not differ, and neither order nor labels of input matter."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from envspec import policy
from envspec.compare import LabelledSnapshot, compare
from envspec.compare.requirements import together
from envspec.errors import UsageError
from envspec.findings import Report, json_schema
from envspec.locks import RoleLock, load_lock
from envspec.report.interface import View
from envspec.report.markdown import Markdown
from envspec.rules import RULES
from envspec.snapshot import Distribution, Extension, FileFault, Origin, Snapshot, Variable, Verification
from envspec.spec import load_spec
from tests.envspec.compare.make import dist, gpu_host, host, lock_of, relabel, snap

NAMES = ("numpy", "torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "vllm", "six", "pip")
VERSIONS = ("1.0", "1.0+cpu", "2.0.0", "2.0", "1!3.0rc1", "weird version", None)


@st.composite
def distributions(draw: st.DrawFn) -> tuple[Distribution, ...]:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    out = []
    for name in names:
        version = draw(st.sampled_from(VERSIONS))
        content = draw(st.sampled_from(("sha256:1", "sha256:2", None)))
        requires = draw(
            st.lists(st.sampled_from(("six", "numpy>=2", "torch==2.0; python_version > '3'", "%%")), max_size=2)
        )
        out.append(dist(name, version, *requires, content=content))
    return tuple(out)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    env = draw(
        st.dictionaries(st.sampled_from(("NCCL_ALGO", "HF_HOME", "PYTHONPATH", "X")), st.sampled_from(("", "1", "a b")))
    )
    environment = {name: Variable(value=value) for name, value in env.items()}
    return dataclasses.replace(snap("x"), distributions=draw(distributions()), environment=environment)


def labelled(snaps: list[Snapshot]) -> list[LabelledSnapshot]:
    return [host(relabel(item, f"h{index}")) for index, item in enumerate(snaps)]


few = settings(max_examples=40, deadline=None)


@few
@given(snapshots(), st.integers(2, 4))
def test_equal_hosts_do_not_differ(one: Snapshot, count: int) -> None:
    """Copies give one group, no row but those of faults each has, and each finding names every copy."""
    alone = compare(labelled([one]))
    report = compare(labelled([one] * count))
    assert len(report.groups) == 1
    assert [(item.code, item.subject) for item in report.findings] == [
        (item.code, item.subject) for item in alone.findings
    ]
    assert all(len(item.hosts) == count for item in report.findings)
    assert report.counts.differed == alone.counts.differed


@few
@given(st.lists(snapshots(), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_order_of_hosts_does_not_matter(snaps: list[Snapshot], order: random.Random) -> None:
    hosts = labelled(snaps)
    shuffled = list(hosts)
    order.shuffle(shuffled)
    assert compare(hosts).to_dict() == compare(shuffled).to_dict()


@few
@given(snapshots(), snapshots())
def test_two_hosts_differ_both_ways_alike(one: Snapshot, other: Snapshot) -> None:
    """Exchanging the two gives the same codes and subjects."""
    forth = compare(labelled([one, other]))
    back = compare(labelled([other, one]))
    assert {(item.code, item.subject) for item in forth.findings} == {
        (item.code, item.subject) for item in back.findings
    }


@few
@given(st.lists(snapshots(), min_size=1, max_size=3), st.integers(1, 3))
def test_more_of_the_same_host_changes_nothing_but_the_names(snaps: list[Snapshot], copies: int) -> None:
    """Grouping: each host several times gives the same groups and rows as once."""
    once = compare(labelled(snaps))
    many = compare([host(relabel(item, f"h{i}-{n}")) for i, item in enumerate(snaps) for n in range(copies)])
    assert len(once.groups) == len(many.groups)
    assert [(row.kind, row.key) for row in once.rows] == [(row.kind, row.key) for row in many.rows]


@few
@given(st.lists(snapshots(), min_size=1, max_size=3))
def test_json_round_trip(snaps: list[Snapshot]) -> None:
    """Every finding survives, and the document is of its schema."""
    report = compare(labelled(snaps))
    document = json.loads(json.dumps(report.to_dict()))
    jsonschema.validate(document, json_schema(), cls=jsonschema.Draft202012Validator)
    again = Report.from_dict(document)
    assert again.to_dict() == report.to_dict()
    assert [item.fingerprint for item in again.findings] == [item.fingerprint for item in report.findings]
    assert all(item.code in RULES for item in report.findings)


@few
@given(distributions())
def test_a_lock_satisfies_what_was_installed_from_it(dists: tuple[Distribution, ...]) -> None:
    """Pins of everything installed: the lock has nothing to say."""
    pinned = [item for item in dists if item.version and " " not in item.version]
    if not pinned:
        return
    with tempfile.TemporaryDirectory() as folder:
        lock = lock_of(Path(folder), *(f"{item.name}==={item.version}" for item in pinned))
        bare = tuple(dataclasses.replace(item, requires=()) for item in pinned)
        report = compare([host(dataclasses.replace(snap("a"), distributions=bare))], [lock])
    # Two CUDA majors side by side are a fault of any environment, locked or not.
    assert [item.what for item in report.findings if item.code != "EP306"] == []


def test_tied_hosts_are_all_named_and_a_majority_is_not() -> None:
    two = compare([host(snap("a", dist("six", "1.0"))), host(snap("b", dist("six", "2.0")))])
    assert two.findings[0].hosts == ("a", "b")
    assert two.reference is None
    three = compare(
        [host(snap(name, dist("six", version))) for name, version in zip("abc", ("1.0", "2.0", "1.0"), strict=True)]
    )
    assert three.findings[0].hosts == ("b",)
    assert three.reference == "majority A"
    assert "six==1.0" in three.findings[0].fix


GIT = "https://git.example/ours"
COMMIT = "a" * 40


@pytest.mark.parametrize("there", [True, False], ids=["another version", "absent"])
@pytest.mark.parametrize(
    ("more", "said", "unsaid"),
    [
        ({}, " ours==2.0", "declare"),
        ({"origin": Origin(kind="editable", url="file:///src/ours")}, "declare the difference", "ours==2.0"),
        ({"origin": Origin(kind="directory", url="file:///src/ours")}, "declare the difference", "ours==2.0"),
        ({"origin": Origin(kind="archive", url="file:///dist/ours-2.0.whl")}, "declare the difference", "ours"),
        ({"origin": Origin(kind="archive", url="https://files.example/ours-2.0.whl")}, "ours @ https://files.example/ours-2.0.whl", "declare"),
        ({"origin": Origin(kind="vcs", vcs="git", url=GIT, commit=COMMIT, subdirectory="py")}, f"ours @ git+{GIT}@{COMMIT}#subdirectory=py", "declare"),
        ({"origin": Origin(kind="vcs", url=f"git+{GIT}@{COMMIT}", commit=COMMIT)}, f"ours @ git+{GIT}@{COMMIT}", "git+git"),
        ({"requires_python": ">=3.13"}, "ours 2.0 is for Python >=3.13, and c has 3.12.4", "ours==2.0"),
        ({"requires_python": "not a specifier"}, " ours==2.0", "declare"),
    ],
)  # fmt: skip
def test_the_mend_installs_what_the_others_have(more: dict[str, Any], said: str, unsaid: str, there: bool) -> None:
    others = [host(snap(name, dist("ours", "2.0", **more))) for name in "ab"]
    report = compare([*others, host(snap("c", *([dist("ours", "1.0")] if there else [])))])
    (fix,) = [item.fix for item in report.findings if item.code in ("EP203", "EP204")]
    assert said in fix
    assert unsaid not in fix


def test_reference_host() -> None:
    hosts = [host(snap(name, dist("six", version))) for name, version in zip("abc", ("1.0", "2.0", "1.0"), strict=True)]
    report = compare(hosts, reference="b")
    assert report.findings[0].hosts == ("a", "c")
    assert report.reference == "host b"
    with pytest.raises(UsageError, match="none of the hosts"):
        compare(hosts, reference="d")


def test_baseline_of_a_role(tmp_path: Path) -> None:
    (tmp_path / "envspec.yaml").write_text("roles:\n  infer:\n    baseline: a\n")
    versions = zip("abc", ("1.0", "2.0", "2.0"), strict=True)
    hosts = [host(snap(name, dist("six", version)), "infer") for name, version in versions]
    report = compare(hosts, spec=load_spec(tmp_path / "envspec.yaml"))
    assert report.findings[0].hosts == ("b", "c")
    assert report.reference == "baseline a"


PATCHED = Verification(checked=9, faults=(FileFault(path="six.py", fault="modified", expected="sha256=1", found="sha256=2"),))
OTHERWISE = Verification(checked=9, faults=(FileFault(path="six.py", fault="modified", expected="sha256=1", found="sha256=3"),))
GONE = Verification(checked=9, faults=(FileFault(path="six.py", fault="missing"), FileFault(path="z.py", fault="missing")))


def verified(label: str, verification: Verification | None, version: str = "1.0") -> LabelledSnapshot:
    return host(snap(label, dist("six", version, verification=verification)), "infer")


def cells(report: Report) -> dict[str, tuple[str, str | None]]:
    """State and text of the only row, by host."""
    (row,) = report.rows
    by_group = zip(report.groups, row.cells, strict=True)
    return {label: (cell.state, cell.text) for group, cell in by_group for label in group.hosts}


def test_a_host_with_changed_files_is_no_group_with_the_others(tmp_path: Path) -> None:
    clean = verified("b", Verification(checked=9))
    hosts = [verified("a", None), clean, verified("m1", PATCHED), verified("m2", GONE), verified("m3", OTHERWISE)]
    report = compare(hosts)
    assert [group.hosts for group in report.groups] == [("a", "b"), ("m1",), ("m2",), ("m3",)]
    found = cells(report)
    assert found["a"] == found["b"]
    assert found["b"][0] == "same"
    assert str(found["m2"][1]).startswith("1.0, 2 files missing")
    assert found["m1"][1] != found["m3"][1]
    two = cells(compare(hosts[:3]))
    assert two == {"a": ("same", "1.0"), "b": ("same", "1.0"), "m1": ("different", "1.0, 1 file modified")}
    (tmp_path / "envspec.yaml").write_text("roles:\n  infer:\n    baseline: b\n")
    assert cells(compare([clean, verified("m2", GONE)], spec=load_spec(tmp_path / "envspec.yaml")))["m2"] == ("different", "1.0, 2 files missing")
    locked = compare([verified("a", None), verified("m1", PATCHED)], [lock_of(tmp_path, "six==1.0", "pip==26.3")])
    assert cells(locked) == {"a": ("same", "1.0"), "m1": ("different", "1.0, 1 file modified")}


def test_a_change_of_files_hides_no_difference_of_versions() -> None:
    report = compare([verified("a", None), verified("b", None), verified("m", PATCHED, "2.0")])
    assert [(item.code, item.hosts) for item in report.findings] == [("EP203", ("m",)), ("EP208", ("m",))]


def test_what_is_accepted_of_files_is_called_unused_only_where_they_were_read(tmp_path: Path) -> None:
    (tmp_path / "envspec.yaml").write_text("ignore:\n  - {code: EP208, subject: 's*', reason: patched}\n")
    spec = load_spec(tmp_path / "envspec.yaml")
    patched = verified("a", Verification(checked=9, faults=(FileFault(path="six.py", fault="modified", found="sha256:1"),)))
    baseline = policy.accepting(compare([patched]).findings, "baseline.json")
    assert len(baseline.accepted) == 1
    for other, unused in ((None, []), (Verification(checked=9), ["EP906", "EP907"])):
        report = compare([verified("a", other)], spec=spec, baseline=baseline)
        assert [item.code for item in report.findings if item.code.startswith("EP90")] == unused


def test_an_extension_that_is_gone_is_told_once_with_and_without_a_verification(tmp_path: Path) -> None:
    gone = Extension(path="six/_c.so", owner="six", fault="missing")
    lost = verified("c", Verification(checked=9, faults=(FileFault(path="six/_c.so", fault="missing"),)))
    for third, code, what in (
        (verified("c", None), "EP411", "six 1.0: six/_c.so is missing"),
        (lost, "EP209", "six 1.0: 1 file missing: six/_c.so"),
    ):
        assert third.snapshot is not None
        broken = dataclasses.replace(third, snapshot=dataclasses.replace(third.snapshot, extensions=(gone,)))
        report = compare([verified("a", None), verified("b", None), broken])
        assert [(item.code, item.hosts, item.what) for item in report.findings] == [(code, ("c",), what)]
        assert [group.hosts for group in report.groups] == [("a", "b"), ("c",)]
        alone = compare([broken], [lock_of(tmp_path, "six==1.0", "pip==26.3")])
        assert alone.counts.differed == compare([lost], [lock_of(tmp_path, "six==1.0", "pip==26.3")]).counts.differed == 1


def test_where_hosts_tie_nothing_is_called_the_reference() -> None:
    report = compare([host(snap("a", dist("six", "1.0"))), host(snap("b", dist("six", "2.0")))])
    assert (report.reference, [group.reference for group in report.groups]) == (None, [False, False])
    assert cells(report) == {"a": ("different", "1.0"), "b": ("different", "2.0")}
    (found,) = report.findings
    assert "--reference HOST" in (found.fix or "")
    text = Markdown().render(report, View())
    assert "(reference)" not in text
    assert "`=` as the reference" not in text


def test_the_reference_is_the_group_of_the_baseline(tmp_path: Path) -> None:
    (tmp_path / "envspec.yaml").write_text("roles:\n  infer:\n    baseline: a\n")
    spec = load_spec(tmp_path / "envspec.yaml")
    hosts = [verified(label, None, version) for label, version in zip("abc", ("1.0", "2.0", "2.0"), strict=True)]
    report = compare(hosts, spec=spec)
    assert {group.hosts: group.reference for group in report.groups} == {("b", "c"): False, ("a",): True}
    assert cells(report)["b"] == ("different", "2.0")
    lost = dataclasses.replace(hosts[0], snapshot=None, error="no answer")
    assert compare([lost, *hosts[1:]], spec=spec).reference is None


def test_same_label_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="label 'a'"):
        compare([host(snap("a")), host(snap("a"))])


def test_roles_take_their_own_locks(tmp_path: Path) -> None:
    train = lock_of(tmp_path, "six==1.0", role="train", name="train.lock")
    infer = lock_of(tmp_path, "six==2.0", role="infer", name="infer.lock")
    hosts = [host(snap("t", dist("six", "1.0")), "train"), host(snap("i", dist("six", "1.0")), "infer")]
    report = compare(hosts, [train, infer])
    assert [(item.code, item.hosts) for item in report.findings] == [("EP202", ("i",))]
    assert [group.name for group in report.groups][:2] == ["lock:infer", "lock:train"]
    row = next(row for row in report.rows if row.key == "six")
    assert [cell.text for cell in row.cells] == ["2.0", "1.0", "1.0", "1.0"]
    assert {cell.state for cell in row.cells} == {"same", "different"}


def test_declared_difference(tmp_path: Path) -> None:
    """Between the roles it is declared; inside one role it is not."""
    (tmp_path / "envspec.yaml").write_text(
        "declared:\n  - package: transformers\n    roles: [train, infer]\n    reason: the server pins its own\n"
    )
    spec = load_spec(tmp_path / "envspec.yaml")
    hosts = [
        host(snap("t", dist("transformers", "5.0")), "train"),
        host(snap("i", dist("transformers", "4.57.1")), "infer"),
        host(snap("j", dist("transformers", "4.57.1")), "infer"),
    ]
    report = compare(hosts, spec=spec)
    assert [(item.code, item.declared, item.hosts) for item in report.findings] == [("EP203", True, ("t",))]
    assert report.exit_code("any") == 0
    assert report.counts.declared == 1
    assert "the server pins its own" in report.findings[0].why
    drifted = [*hosts, host(snap("k", dist("transformers", "4.50")), "infer")]
    report = compare(drifted, spec=spec)
    assert [(item.hosts, item.declared) for item in report.findings if item.code == "EP203"] == [
        (("k",), False),
        (("t",), True),
    ]
    assert report.exit_code("results") == 1


def test_unused_declaration_and_ignores_are_reported(tmp_path: Path) -> None:
    (tmp_path / "envspec.yaml").write_text(
        "roles: {train: {}, infer: {}}\n"
        "declared:\n  - package: transformers\n    roles: [train, infer]\n"
        "ignore:\n"
        "  - {code: EP203, subject: six, reason: known}\n"
        "  - {code: EP601, reason: gone}\n"
        "  - {code: EP203, subject: num*, reason: till spring, until: 2026-01-31}\n"
        "severity:\n  EP203: breaks\n"
    )
    hosts = [host(snap(n, dist("six", v), dist("numpy", v))) for n, v in zip("abc", ("1.0", "2.0", "1.0"), strict=True)]
    report = compare(hosts, spec=load_spec(tmp_path / "envspec.yaml"), today=date(2026, 12, 1))
    found = [(item.code, item.subject, item.severity, item.ignored) for item in report.findings]
    assert found == [
        ("EP203", "numpy", "breaks", False),
        ("EP203", "six", "breaks", True),
        ("EP905", "EP203 num*", "noise", False),
        ("EP906", "EP601", "noise", False),
        ("EP906", "package transformers", "noise", False),
    ]
    lines = {item.subject: item.location.line for item in report.findings if item.location is not None}
    assert lines == {"EP203 num*": 8, "EP601": 7, "package transformers": 3}
    assert report.exit_code() == 1
    before = compare(hosts, spec=load_spec(tmp_path / "envspec.yaml"), today=date(2026, 1, 31))
    assert before.exit_code() == 0


def test_findings_do_not_depend_on_which_host_comes_first_in_a_role() -> None:
    snaps = {name: snap(name, dist("six", version)) for name, version in zip("abcd", ("1", "2", "2", "3"), strict=True)}
    reports = [compare([host(snaps[name]) for name in order]).to_dict() for order in itertools.permutations("abcd")]
    assert all(report == reports[0] for report in reports)


def test_multi_use_lock_by_role(tmp_path: Path) -> None:
    path = tmp_path / "pylock.toml"
    path.write_text(
        'lock-version = "1.0"\ncreated-by = "x"\nextras = []\ndependency-groups = ["training", "inference"]\n'
        '[[packages]]\nname = "six"\nversion = "1.0"\nmarker = "\'training\' in dependency_groups"\n'
        'sdist = { name = "six-1.0.tar.gz", path = "six-1.0.tar.gz", hashes = { sha256 = "' + "0" * 63 + '1" } }\n'
    )
    locks = [RoleLock(role=role, lock=load_lock(path, role)) for role in ("training", "inference")]
    hosts = [host(snap("t"), "training"), host(snap("i"), "inference")]
    assert [(item.code, item.hosts) for item in compare(hosts, locks).findings] == [("EP201", ("t",))]
    right = [host(snap("t", dist("six", "1.0")), "training"), hosts[1]]
    assert [(item.code, item.declared) for item in compare(right, locks).findings] == [("EP204", True)]


def test_a_hundred_hosts_of_250_packages() -> None:
    """The size that the benchmark times: one host drifts, and exactly that is found."""
    dists = [dist(f"package-{index}", f"1.{index}", f"package-{(index + 1) % 250}>=1") for index in range(250)]
    base = gpu_host("x", *dists)
    hosts = [host(relabel(base, f"gpu-{index:03}")) for index in range(99)]
    hosts.append(host(gpu_host("odd", dist("package-0", "2.0"), *dists[1:])))
    report = compare(hosts)
    assert [(item.code, item.subject, item.hosts) for item in report.findings] == [("EP203", "package-0", ("odd",))]
    assert [len(group.hosts) for group in report.groups] == [99, 1]


def test_locks_of_roles_declare_how_they_differ(tmp_path: Path) -> None:
    """Each host is what its own lock says: shown as declared. Without the locks the same hosts differ."""
    train = lock_of(tmp_path, "six==1.0", "trainer==1.0", role="train", name="train.lock")
    infer = lock_of(tmp_path, "six==2.0", role="infer", name="infer.lock")
    hosts = [
        host(snap("t", dist("six", "1.0"), dist("trainer", "1.0")), "train"),
        host(snap("i", dist("six", "2.0")), "infer"),
    ]
    report = compare(hosts, [train, infer])
    assert [(item.code, item.subject, item.declared) for item in report.findings] == [
        ("EP203", "six", True),
        ("EP204", "trainer", True),
    ]
    assert report.exit_code("any") == 0
    assert "locks of the roles" in report.findings[0].why
    assert [item.declared for item in compare(hosts).findings] == [False, False]


NUMBERS = ("1", "1.0", "1.5", "2.0", "2.0.1", "10.0")
SPECIFIERS = st.lists(st.builds("{}{}".format, st.sampled_from((">=", ">", "<", "<=", "==", "!=", "~=")), st.sampled_from(NUMBERS[1:])), max_size=3).map(",".join)


@given(st.lists(SPECIFIERS, max_size=4))
def test_one_specifier_takes_what_all_take(specifiers: list[str]) -> None:
    one = together(specifiers)
    for version in (*NUMBERS, "0.9", "1.5.1", "2.0rc1", "3"):
        assert SpecifierSet(one).contains(version, prereleases=True) == all(SpecifierSet(each).contains(version, prereleases=True) for each in specifiers)
    assert all(one.count(operator) == 1 for operator in (">=", "<=") if operator in one)


def test_of_several_bounds_the_one_that_decides_is_told() -> None:
    assert together(["<9.0,>=8.3.1", "<9.0,>=7.0", ">=8.0", "!=8.3.2", ""]) == ">=8.3.1,<9.0,!=8.3.2"
