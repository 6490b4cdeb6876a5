"""The statement on an image: true, complete, and not made of an image that was tampered with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envspec.images import labels
from envspec.images.attest import statement
from envspec.images.inspect import ImageFacts
from tests.envspec.engine import PREFIX
from tests.envspec.images.conftest import Pair, Workshop
from tests.envspec.images.test_verify import run


def resources(document: dict[str, Any]) -> dict[str, Any]:
    predicate = document["predicate"]
    return {item["name"]: item for item in [*predicate["buildDefinition"]["resolvedDependencies"], *predicate["runDetails"]["byproducts"]]}


@pytest.mark.docker
def test_it_holds_every_digest_of_an_image(workshop: Workshop, pair: Pair, tmp_path: Path) -> None:
    file = tmp_path / "statement.json"
    outcome = run("attest", pair.infer, "--builder", "https://ci.example/builder", "--save", str(file))
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    document = json.loads(file.read_text())
    about = workshop.client.images.get(pair.infer)
    said = about.attrs["Config"]["Labels"]
    assert document["_type"] == "https://in-toto.io/Statement/v1"
    assert document["predicateType"] == "https://slsa.dev/provenance/v1"
    assert document["subject"] == [{"name": pair.infer, "digest": {"sha256": about.id.removeprefix("sha256:")}}]
    assert document["predicate"]["buildDefinition"]["externalParameters"] == {"stack": "small", "role": "infer", "base": None}
    assert document["predicate"]["runDetails"]["builder"]["id"] == "https://ci.example/builder"
    expected = {"base": labels.BASE_DIGEST, "lock": labels.LOCK_DIGEST, "environment": labels.ENVIRONMENT_DIGEST, "snapshot": labels.SNAPSHOT_DIGEST}
    assert {name: "sha256:" + item["digest"]["sha256"] for name, item in resources(document).items()} == {name: said[label] for name, label in expected.items()}
    assert json.loads(run("attest", pair.infer, "--builder", "https://ci.example/builder").out) == document


@pytest.mark.docker
def test_what_was_tampered_with_is_not_attested(workshop: Workshop, pair: Pair, tmp_path: Path) -> None:
    image = workshop.commit(pair.infer, {}, f"{PREFIX}-unattested", script=f"echo 'B = 2' >> /{workshop.site}/alpha/core.py")
    file = tmp_path / "statement.json"
    outcome = run("attest", image, "--save", str(file))
    assert (outcome.code, outcome.out) == (1, "")
    assert {line.split()[3] for line in outcome.err.splitlines()} == {"EP208", "EP824", "EP825"}
    assert list(tmp_path.iterdir()) == []
    assert run("attest", f"{pair.train}-unlabelled").code == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("x", "--builder", "me"), "expected a URI"),
        (("x", "--save", "/nowhere/file"), "there is no directory /nowhere"),
        (("x", "--timeout", "-1"), "above 0"),
    ],
)
def test_wrong_use_is_one_sentence(words: tuple[str, ...], message: str) -> None:
    outcome = run("attest", *words)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_registry_digests_are_subjects_and_a_changed_checkout_is_said() -> None:
    said = {"org.opencontainers.image.revision": "abc-changed", "org.opencontainers.image.source": "https://git.example/p", "org.opencontainers.image.base.name": "b:1"}
    facts = ImageFacts(name="i:1", id="sha256:11", layers=(), labels={**said, labels.BASE_DIGEST: "sha256:22"}, repo_digests=("registry.example/i@sha256:33",))
    document = statement(facts, "urn:x")
    assert document["subject"] == [{"name": "i:1", "digest": {"sha256": "11"}}, {"name": "registry.example/i", "digest": {"sha256": "33"}}]
    found = resources(document)
    assert found["recipe"] == {"name": "recipe", "digest": {"gitCommit": "abc"}, "annotations": {"uncommittedChanges": True}, "uri": "https://git.example/p"}
    assert found["base"]["uri"] == "oci:b:1"
