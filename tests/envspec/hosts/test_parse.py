"""Host names of the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envspec.errors import EnvspecError, UsageError
from envspec.hosts import open_host, parse_host
from envspec.hosts.ssh import SshHost


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("local", ("local", None, None, None, None, None)),
        ("local:/opt/env/bin/python", ("local", None, None, None, None, "/opt/env/bin/python")),
        ("train=local", ("local", "train", None, None, None, None)),
        ("ssh://me@gpu.example:2222/opt/env/bin/python", ("ssh", None, "gpu.example", "me", 2222, "/opt/env/bin/python")),
        ("ssh://GPU/~/env", ("ssh", None, "GPU", None, None, "~/env")),
        ("ssh://[::1]:22/x", ("ssh", None, "::1", None, 22, "/x")),
        ("infer=user@gpu:~/ml-env/bin/python3", ("ssh", "infer", "gpu", "user", None, "~/ml-env/bin/python3")),
        ("user@gpu", ("ssh", None, "gpu", "user", None, None)),
        ("gpu:", ("ssh", None, "gpu", None, None, None)),
        ("[fe80::1%eth0]:python3", ("ssh", None, "[fe80::1%eth0]", None, None, "python3")),
        ("image:registry.example:5000/a/b:tag", ("image", None, "registry.example:5000/a/b:tag", None, None, None)),
        ("image:x#/opt/env/bin/python", ("image", None, "x", None, None, "/opt/env/bin/python")),
        ("container:c1", ("container", None, "c1", None, None, None)),
        ("pod:ml/train-0/main", ("pod", None, "ml/train-0/main", None, None, None)),
        ("lock:uv.lock", ("lock", None, None, None, None, "uv.lock")),
        ("train=snap.json", ("file", "train", None, None, None, "snap.json")),
        ("./freeze", ("file", None, None, None, None, "./freeze")),
    ],
)
def test_every_form(text: str, expected: tuple[object, ...]) -> None:
    name = parse_host(text)
    assert (name.kind, name.role, name.host, name.user, name.port, name.path) == expected
    assert name.label == name.text == text.removeprefix(f"{name.role}=")


def test_names_of_the_spec_stand_for_hosts() -> None:
    name = parse_host("infer=gpu1", {"gpu1": "me@gpu.example:~/e"})
    assert (name.kind, name.role, name.label, name.host) == ("ssh", "infer", "gpu1", "gpu.example")
    assert parse_host("gpu1", {"gpu1": "train=local"}).role == "train"
    assert open_host(name).label == "gpu1"


@pytest.mark.parametrize("text", ["", "train=", "gpu1", "local:", "image:", "http://x/y", "-x", "pod:onlyone", "pod:A/b", "pod:-n/x", "image:--privileged", "container:a b", "lock:", "a\nb:c"])
def test_what_is_no_host_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_host(parse_host(text))
    assert "\n" not in str(caught.value)


def test_a_lock_is_no_host_to_open() -> None:
    with pytest.raises(UsageError, match="is a lock"):
        open_host(parse_host("lock:uv.lock"))


@example("~0")
@example("local:~0/python")
@given(st.text(max_size=40) | st.from_regex(re.compile(r"(ssh://|pod:|image:|[a-z]=)?[-a-z@:/\[\]~#%$; ]{0,20}"), fullmatch=True))
def test_any_text_is_a_host_or_one_error(text: str) -> None:
    try:
        host = open_host(parse_host(text))
    except EnvspecError as caught:
        said = str(caught)
    else:
        said = ""
        if isinstance(host, SshHost):
            line = host.command()
            assert not line[line.index("--") + 1].startswith("-")
    assert "\n" not in said


def test_an_existing_file_wins_over_a_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a=b.json").write_text("{}")
    assert parse_host("a=b.json").role is None
