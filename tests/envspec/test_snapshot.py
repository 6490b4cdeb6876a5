"""The Snapshot: strict reading, round trips, its digest and its schema."""

from __future__ import annotations

import json
import typing
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envspec import probe, snapshot
from envspec.snapshot import Capture, Distribution, Problem, Section, Snapshot, SnapshotError, Variable

SCHEMA_FILE = Path(snapshot.__file__).parent / "schema/snapshot.json"


def example(**more: typing.Any) -> Snapshot:
    return Snapshot(
        capture=Capture(label="a", target="local", transport="local", time="2026-01-01T00:00:00Z", hostname="h", user="u"),
        sections={name: Section(status="ok") for name in snapshot.SECTIONS},
        distributions=(
            Distribution(name="alpha", raw_name="Alpha", version="1.0", location="/x", metadata_path="/x/a", problems=(Problem(kind="k", detail="d"),)),
        ),
        environment={"NCCL_ALGO": Variable(value="Ring"), "PATH": Variable(value="/bin"), "HF_TOKEN": Variable(redacted=True, hash="00")},
        **more,
    )


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    snapshot.save(example(), path)
    assert snapshot.load(path) == example()
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


def test_the_schema_in_the_package_is_that_of_the_types() -> None:
    assert json.loads(SCHEMA_FILE.read_text()) == snapshot.json_schema()
    jsonschema.Draft202012Validator.check_schema(snapshot.json_schema())


def test_what_the_probe_writes_is_valid() -> None:
    document = json.loads(json.dumps(probe.main({"deep": ["packaging"], "salt": "s"})))
    document["capture"].update(label="t", target="t", transport="local")
    jsonschema.Draft202012Validator(snapshot.json_schema()).validate(document)
    read = Snapshot.from_dict(document)
    jsonschema.Draft202012Validator(snapshot.json_schema()).validate(json.loads(json.dumps(read.to_dict())))
    assert set(read.sections) == set(snapshot.SECTIONS)
    known = set(snapshot.json_schema()["properties"])
    assert set(document) <= known
    fields = snapshot.json_schema()["$defs"]["Distribution"]["properties"]
    assert {key for dist in document["distributions"] for key in dist} <= set(fields)


def test_a_section_without_a_status_is_not_known() -> None:
    document = example().to_dict()
    document["sections"] = {"path": {"status": "ok"}}
    document["distributions"] = []
    read = snapshot.loads(document)
    assert set(read.sections) == set(snapshot.SECTIONS)
    assert read.known("path")
    assert read.section("distributions") == Section(status="unknown", reason="the snapshot does not say whether it was read")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("distributions", 0, "version"), 7, "distributions[0].version: expected a string, found 7"),
        (("distributions", 0, "problems", 0, "kind"), None, "distributions[0].problems[0].kind: expected a string, found nothing (null)"),
        (("sections", "distributions", "status"), "fine", "sections.distributions.status: expected one of 'ok', 'partial', 'unknown', found \"fine\""),
        (("distributions",), {}, "distributions: expected a list, found an object"),
        (("capture",), [], "capture: expected an object, found a list"),
        (("environment", "PATH"), "x", "environment.PATH: expected an object, found \"x\""),
        (("gpus",), [{"index": True, "name": "x"}], "gpus[0].index: expected a whole number, found true"),
    ],
)
def test_a_bad_value_is_named_by_its_path(path: tuple[typing.Any, ...], value: object, message: str) -> None:
    document = json.loads(json.dumps(example().to_dict()))
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(SnapshotError) as caught:
        snapshot.loads(document, "file.json")
    assert str(caught.value) == f"file.json: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not valid JSON"),
        ("[]", "no 'schema' key"),
        ("{}", "no 'schema' key"),
        ('{"schema": "envspec/snapshot/9"}', "has schema 'envspec/snapshot/9'; this version reads 'envspec/snapshot/1'"),
        ('{"schema": "envspec/snapshot/1"}', "the key 'capture' is missing"),
        ("[" * 100000, "is not valid JSON"),
        ('{"schema": 1, "distributions": [3], "distributions": []}', "the key 'distributions' stands twice"),
    ],
)
def test_other_files_are_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(SnapshotError) as caught:
        snapshot.load(tmp_path / "x.json")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(SnapshotError, match="cannot read the snapshot"):
        snapshot.load(tmp_path / "absent.json")
    with pytest.raises(SnapshotError, match="cannot write the snapshot"):
        snapshot.save(example(), tmp_path / "absent/x.json")


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["schema", "capture", "name", "x", "distributions"]), inner, max_size=4), max_leaves=12)  # fmt: skip


@given(document=JSON, key=st.sampled_from(list(example().to_dict())))
@settings(deadline=None)
def test_any_json_is_a_snapshot_or_one_error(document: object, key: str) -> None:
    for candidate in (document, {**example().to_dict(), key: document}):
        try:
            read: object = snapshot.loads(candidate)
        except SnapshotError as caught:
            read = str(caught)
        assert isinstance(read, Snapshot) or (isinstance(read, str) and "\n" not in read)


def test_the_digest_is_of_what_runs() -> None:
    base = example()
    same = replace(
        base,
        capture=replace(base.capture, label="b", time="2027-01-01T00:00:00Z", hostname="other", user="v", elapsed_s=3.0),
        distributions=(replace(base.distributions[0], location="/y", metadata_path="/y/a", installer="uv"),),
        environment={**base.environment, "PATH": Variable(value="/other"), "HF_TOKEN": Variable(redacted=True, hash="ff")},
    )
    assert same.digest == base.digest
    for other in (
        replace(base, distributions=()),
        replace(base, distributions=(replace(base.distributions[0], version="1.1"),)),
        replace(base, distributions=(replace(base.distributions[0], content="sha256:1"),)),
        replace(base, environment={**base.environment, "NCCL_ALGO": Variable(value="Tree")}),
        replace(base, sections={"distributions": Section(status="partial", reason="r")}),
    ):
        assert other.digest != base.digest


def test_order_of_capture_does_not_matter_to_the_digest() -> None:
    base = example()
    second = replace(base.distributions[0], name="beta", raw_name="beta")
    assert replace(base, distributions=(base.distributions[0], second)).digest == replace(base, distributions=(second, base.distributions[0])).digest


def test_a_section_not_tried_is_unknown() -> None:
    blind = replace(example(), sections={"distributions": Section(status="ok")})
    assert blind.section("gpus").status == "unknown"
    assert not blind.known("gpus")
    assert example().known("distributions")
