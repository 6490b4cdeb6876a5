"""The proof that a lock is closed, on made-up graphs, and the choice of wheels and markers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.markers import Marker
from packaging.version import Version

from envspec.locking.closed import close
from envspec.locking.cuda import major, torch_cuda
from envspec.locking.environments import Platform, best, marker_environments, narrow, uv_environment
from envspec.locking.model import Entry
from envspec.locking.newest import behind
from envspec.locks.files import locked_file

PLATFORM = Platform(python=("3.11", "3.12"), glibc="2.36")
NAMES = tuple("abcdefgh")


def entry(name: str, version: str = "1.0", *requires: str, marker: str | None = None, python: str | None = None) -> Entry:
    return Entry(name=name, version=version, marker=marker, requires=requires, requires_python=python, wheels=())


def gaps(*entries: Entry, inputs: tuple[str, ...] = ("a",)) -> list[str]:
    return [gap.message for gap in close(entries, inputs, PLATFORM).gaps]


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, tuple[str, ...]]:
    """Every name, and which of the others each requires; ``a`` reaches all."""
    edges = {name: draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3)) for name in NAMES}
    for before, after in itertools.pairwise(NAMES):
        edges[before] = [*edges[before], after]
    return {name: tuple(dict.fromkeys(wanted)) for name, wanted in edges.items()}


def entries_of(graph: Mapping[str, tuple[str, ...]]) -> list[Entry]:
    return [entry(name, "1.0", *(f"{other}>=1" for other in wanted)) for name, wanted in graph.items()]


@given(graphs(), st.randoms())
def test_a_whole_graph_is_closed_in_any_order_and_all_of_it_is_reached(graph: dict[str, tuple[str, ...]], random: st.DataObject) -> None:
    entries = entries_of(graph)
    random.shuffle(entries)  # type: ignore[attr-defined]
    closure = close(entries, ["a"], PLATFORM)
    assert (closure.gaps, closure.unreached) == ((), ())
    for name in NAMES:
        assert closure.chain(name).endswith("the inputs ask for it" if name == "a" else "the inputs ask for a")


@given(graphs(), st.sampled_from(NAMES[1:]))
def test_without_one_entry_the_gap_names_it_and_who_needs_it(graph: dict[str, tuple[str, ...]], missing: str) -> None:
    entries = [item for item in entries_of(graph) if item.name != missing]
    messages = [gap.message for gap in close(entries, ["a"], PLATFORM).gaps]
    assert messages
    assert all(f"needs {missing}>=1, which is not in the lock" in message for message in messages)


@given(graphs(), st.sampled_from(NAMES[1:]))
def test_a_version_below_what_is_required_is_a_gap(graph: dict[str, tuple[str, ...]], lowered: str) -> None:
    entries = [entry(item.name, "0.9", *item.requires) if item.name == lowered else item for item in entries_of(graph)]
    messages = [gap.message for gap in close(entries, ["a"], PLATFORM).gaps]
    assert messages
    assert all(message.endswith(f"needs {lowered}>=1, the lock has 0.9") for message in messages)


def test_an_extra_counts_only_where_it_is_asked_for() -> None:
    extra = entry("b", "1.0", "c ; extra == 'fast'", "d ; extra == 'slow'")
    assert gaps(entry("a", "1.0", "b"), extra) == []
    assert gaps(entry("a", "1.0", "b[fast]"), extra) == ["b[fast] 1.0 needs c, which is not in the lock"]
    # Also when b was reached without it first.
    assert gaps(entry("a", "1.0", "b", "x"), entry("x", "1.0", "B[Fast]"), extra) == ["b[fast] 1.0 needs c, which is not in the lock"]


def test_who_asked_for_an_extra_stands_in_the_chain() -> None:
    entries = [entry("a", "1.0", "b"), entry("b", "2.0", "dsl[cu13]"), entry("dsl", "4.8", "libs-cu13==4.8 ; extra == 'cu13'"), entry("libs-cu13", "4.8")]
    assert close(entries, ["a>=1"], PLATFORM).chain("libs-cu13") == "dsl[cu13] 4.8 needs libs-cu13==4.8; b 2.0 needs dsl[cu13]; a 1.0 needs b; the inputs ask for a>=1"


def test_a_cycle_through_extras_ends() -> None:
    assert gaps(entry("a", "1.0", "a[x]", "b ; extra == 'x'"), entry("b", "1.0", "a[x]")) == []


def test_a_gap_says_on_which_python() -> None:
    found = close([entry("a", "1.0", "b ; python_version < '3.12'")], ["a"], PLATFORM).gaps
    assert [(gap.message, gap.python) for gap in found] == [("a 1.0 needs b, which is not in the lock", ("3.11",))]


def test_releases_within_a_minor_version_are_told_apart() -> None:
    assert gaps(entry("a", "1.0", "b ; python_full_version < '3.11.3'")) == ["a 1.0 needs b, which is not in the lock"]
    assert gaps(entry("a", "1.0", "b ; python_full_version < '3.11.3'"), entry("b", marker="python_version == '3.11'")) == []


def test_other_systems_are_left_out() -> None:
    assert gaps(entry("a", "1.0", "b ; sys_platform == 'win32'", "c ; platform_machine == 'aarch64'", "d ; implementation_name == 'pypy'")) == []


def test_two_versions_at_once_and_a_python_that_does_not_fit() -> None:
    assert gaps(entry("a"), entry("a", "2.0")) == ["the lock has a 1.0 and a 2.0 at once"]
    assert gaps(entry("a", marker="python_version < '3.12'"), entry("a", "2.0", marker="python_version >= '3.12'")) == []
    assert gaps(entry("a", python=">=3.12")) == ["a 1.0 is for Python >=3.12"]


def test_what_nobody_requires_is_found() -> None:
    assert [item.name for item in close([entry("a"), entry("b"), entry("c", "1.0", "b")], ["a"], PLATFORM).unreached] == ["b", "c"]


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        ("sys_platform == 'linux'", None),
        (uv_environment(PLATFORM), None),
        ("python_full_version == '3.11.*' and platform_machine == 'x86_64'", "python_version == '3.11'"),
        ("python_version >= '3.12'", "python_version == '3.12'"),
        ("python_full_version < '3.11.3'", 'python_full_version < "3.11.3"'),
    ],
)
def test_a_marker_is_said_in_the_fewest_words(marker: str, words: str | None) -> None:
    assert narrow(Marker(marker), marker_environments(PLATFORM, [marker])) == words


def test_the_best_wheel_is_of_the_newest_c_library_allowed_and_of_the_highest_build() -> None:
    names = ["x-1-cp311-cp311-manylinux2014_x86_64.whl", "x-1-cp311-cp311-manylinux_2_28_x86_64.whl", "x-1-cp311-cp311-manylinux_2_39_x86_64.whl",
             "x-1-2-cp311-cp311-manylinux_2_28_x86_64.whl", "x-1-10-cp311-cp311-manylinux_2_28_x86_64.whl", "x-1-cp38-abi3-manylinux_2_36_x86_64.whl",
             "x-1-py3-none-any.whl", "x-1-cp311-cp311-win_amd64.whl"]  # fmt: skip
    files = [locked_file(name, None, None, frozenset()) for name in names]

    def choice(python: str, glibc: str) -> str | None:
        found = best(files, python, glibc)
        return found.name if found else None

    assert choice("3.11", "2.36") == "x-1-10-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert choice("3.11", "2.40") == "x-1-cp311-cp311-manylinux_2_39_x86_64.whl"
    assert choice("3.11", "2.17") == "x-1-cp311-cp311-manylinux2014_x86_64.whl"
    assert choice("3.12", "2.36") == "x-1-cp38-abi3-manylinux_2_36_x86_64.whl"
    assert choice("3.12", "2.17") == "x-1-py3-none-any.whl"
    assert best(files[-1:], "3.11", "2.36") is None


@pytest.mark.parametrize(
    ("name", "version", "found"),
    [
        ("nvidia-nccl-cu12", "2.27.5", 12),
        ("nvidia-cuda-runtime", "13.0.48", 13),
        ("nvidia-cutlass-dsl-libs-cu13", "4.8.1", 13),
        ("cupy-cuda12x", "13.6.0", 12),
        ("cuda-python", "12.9.0", 12),
        ("cuda-toolkit", "13.0.2", 13),
        ("torch", "2.9.1+cu126", 12),
        ("nvidia-ml-py", "13.615.71", None),
        ("cuda-pathfinder", "1.9.1", None),
        ("nvidia-cudnn-frontend", "1.28.0", None),
        ("numpy", "2.4.0", None),
    ],
)
def test_the_cuda_major_of_a_distribution(name: str, version: str, found: int | None) -> None:
    assert major(entry(name, version)) == found


@pytest.mark.parametrize(
    ("version", "requires", "cuda"),
    [
        ("2.9.1", ("nvidia-cuda-runtime-cu12==12.8.90 ; platform_system == 'Linux'",), "12.8"),
        ("2.11.0", ("cuda-toolkit[cudart]==13.0.2",), "13.0"),
        ("2.9.1+cu126", (), "12.6"),
        ("2.9.1+cpu", (), None),
        ("2.9.1", ("numpy",), None),
    ],
)
def test_the_cuda_version_of_a_torch(version: str, requires: tuple[str, ...], cuda: str | None) -> None:
    assert torch_cuda(entry("torch", version, *requires)) == cuda


@pytest.mark.parametrize(
    ("version", "newest", "late"),
    [("0.2.0", "0.9.0", True), ("0.7.0.2", "0.9.0", True), ("0.8.9", "0.9.0", False), ("0.9.0", "0.9.5", False), ("1.99", "2.0", True), ("2.0", "1.99", False), ("2.0", "1!1.0", True)],
)
def test_more_than_one_minor_version_behind(version: str, newest: str, late: bool) -> None:
    assert behind(Version(version), Version(newest)) is late
