"""Reading stacks: what the folder must hold, and where a mistake is."""

from __future__ import annotations

from pathlib import Path

import pytest

from envspec.errors import UsageError
from envspec.stacks import SmokeImport, find_stack, find_stacks, load_stack

GOOD = """\
version: 1
description: a stack
python: ["3.12", "3.11"]
glibc: "2.36"
cuda: "12.8"
base: nvidia/cuda:12.8.1@sha256:DIGEST
archs: [sm_80, sm_90]
smoke: [torch, {import: sgl_kernel, needs: driver}]
roles: {train: needs more}
""".replace("DIGEST", "a" * 64)


def write(folder: Path, text: str = GOOD, *files: str) -> Path:
    place = folder / "demo"
    place.mkdir()
    (place / "stack.yaml").write_text(text)
    for name in files or ("requirements.in", "requirements.train.in"):
        (place / name).write_text("numpy\n")
    return place


def test_a_whole_stack(tmp_path: Path) -> None:
    stack = load_stack(write(tmp_path))
    assert (stack.name, stack.python, stack.glibc, stack.cuda, stack.archs) == ("demo", ("3.12", "3.11"), "2.36", "12.8", ("sm_80", "sm_90"))
    assert stack.base == f"nvidia/cuda:12.8.1@sha256:{'a' * 64}"
    assert stack.smoke == (SmokeImport(module="torch"), SmokeImport(module="sgl_kernel", needs="driver"))
    assert stack.roles == {"train": "needs more"}


def test_a_role_has_the_files_of_its_own_only_where_it_is_declared(tmp_path: Path) -> None:
    stack = load_stack(write(tmp_path))
    assert stack.own == (None, "train")
    assert [path.name for path in stack.inputs("train")] == ["requirements.in", "requirements.train.in"]
    assert [path.name for path in stack.inputs("infer")] == ["requirements.in"]
    assert (stack.lock("train").name, stack.metadata("train").name) == ("requirements.train.lock", "requirements.train.metadata.json")
    assert stack.lock("infer") == stack.lock() == tmp_path / "demo" / "requirements.lock"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("version: 1", "version: 2", ":1: version: expected 1, found 2"),
        ('python: ["3.12", "3.11"]', "python: 3.12", ":3: python: expected a list, found a number"),
        ('"3.11"]', '"3"]', ":3: python[1]: expected a minor version in quotes such as \"3.12\", found '3'"),
        ('"3.11"]', '"3.12"]', ":3: python[1]: 3.12 stands twice"),
        ('python: ["3.12", "3.11"]\n', "", ": python: expected the versions of CPython"),
        ('glibc: "2.36"\n', "", ": glibc: the oldest C library"),
        ('cuda: "12.8"', "cuda: 12.8", ":5: cuda: expected text, found a number"),
        ("@sha256:" + "a" * 64, "", ":6: base: expected an image with its digest, NAME:TAG@sha256:<64 hex digits>, found 'nvidia/cuda:12.8.1'"),
        ("sm_90", "hopper", ":7: archs[1]: expected an architecture such as sm_90, found 'hopper'"),
        ("smoke: [torch", "smoke: [to rch", ":8: smoke[0]: expected a module to import"),
        ("needs: driver", "needs: gpu", ":8: smoke[1].needs: expected driver, found 'gpu'"),
        ("roles: {train", "roles: {trian", ":9: roles.trian: there is no such key; did you mean 'train'?; known: train, infer"),
        ("train: needs more", "train: ''", ":9: roles.train: say in words why this role may differ"),
        ("archs:", "arch:", ":7: arch: there is no such key; did you mean 'archs'?"),
        ("version: 1", "version: [", ": this is not valid YAML: "),
        ("version: 1", "version: !!timestamp foo", ":1: version: 'foo' cannot be read as timestamp"),
        (GOOD, "", ": version: expected 1, found None"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_key(tmp_path: Path, old: str, new: str, words: str) -> None:
    folder = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(UsageError) as error:
        load_stack(folder)
    message = str(error.value)
    assert message.startswith(str(folder / "stack.yaml"))
    assert words in message
    assert "\n" not in message


def test_inputs_that_are_missing_or_not_declared(tmp_path: Path) -> None:
    folder = write(tmp_path, GOOD, "requirements.in")
    with pytest.raises(UsageError, match=r"the stack has no requirements\.train\.in; write"):
        load_stack(folder)
    (folder / "requirements.train.in").write_text("numpy\n")
    (folder / "requirements.infer.in").write_text("numpy\n")
    with pytest.raises(UsageError, match=r"requirements\.infer\.in makes the role 'infer' differ, which 'roles' does not declare"):
        load_stack(folder)


def test_a_name_that_no_image_can_have(tmp_path: Path) -> None:
    folder = write(tmp_path).rename(tmp_path / "Big Stack")
    with pytest.raises(UsageError, match="the folder's name 'Big Stack' becomes an image's name"):
        load_stack(folder)


def test_stacks_are_found_by_name_and_by_folder(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert find_stacks(tmp_path) == [folder]
    assert find_stack("demo", tmp_path) == find_stack(str(folder), tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"there is no stack 'sglang': no stack\.yaml in .*; stacks here: demo"):
        find_stack(None, tmp_path)
    with pytest.raises(UsageError, match=r"stacks here: none in "):
        find_stack("demo", tmp_path / "demo")
