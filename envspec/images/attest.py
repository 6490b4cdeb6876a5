"""What an image was made from, as a statement that a supply chain's tools read.

The envelope is in-toto's Statement v1 (https://in-toto.io/Statement/v1), the predicate SLSA's provenance v1
(https://slsa.dev/provenance/v1). It is not signed here; `cosign attest` and the like sign such a file as it is.
"""

from __future__ import annotations

from typing import Any, Final

from envspec import __version__
from envspec.images import labels
from envspec.images.inspect import ImageFacts

__all__ = ["BUILD_TYPE", "statement"]

BUILD_TYPE: Final = "urn:eagle3-parity:build:images:v1"
_OCI: Final = "org.opencontainers.image."


def statement(facts: ImageFacts, builder: str) -> dict[str, Any]:
    """The statement on an image whose labels have been found true. ``builder`` is a URI.

    Subjects are the image's id and, where it has been pushed or pulled, its digest in each registry.
    """
    said = facts.labels
    base = said.get(_OCI + "base.name")
    dependencies = [
        _resource("base", said.get(labels.BASE_DIGEST), uri=f"oci:{base}" if base else None),
        _resource("lock", said.get(labels.LOCK_DIGEST), path=labels.LOCK),
    ]
    commit, _, changed = said.get(_OCI + "revision", "").partition("-")
    if commit:
        recipe: dict[str, Any] = {"name": "recipe", "digest": {"gitCommit": commit}}
        if changed:
            recipe["annotations"] = {"uncommittedChanges": True}
        dependencies.append({**recipe, "uri": said[_OCI + "source"]} if said.get(_OCI + "source") else recipe)
    subjects = [{"name": facts.name, "digest": _digest(facts.id)}]
    subjects += [{"name": name, "digest": _digest(digest)} for name, _, digest in (text.partition("@") for text in facts.repo_digests)]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"stack": said.get(labels.STACK), "role": said.get(labels.ROLE), "base": base},
                "internalParameters": {},
                "resolvedDependencies": dependencies,
            },
            "runDetails": {
                "builder": {"id": builder, "version": {"envspec": __version__}},
                "metadata": {"finishedOn": facts.created} if facts.created else {},
                "byproducts": [
                    _resource("environment", said.get(labels.ENVIRONMENT_DIGEST), path=labels.ENVIRONMENT),
                    _resource("snapshot", said.get(labels.SNAPSHOT_DIGEST), path=labels.SNAPSHOT),
                ],
            },
        },
    }


def _digest(text: str | None) -> dict[str, str]:
    algorithm, _, value = (text or "").partition(":")
    return {algorithm: value}


def _resource(name: str, digest: str | None, *, uri: str | None = None, path: str | None = None) -> dict[str, Any]:
    """A resource descriptor; a place inside the image is an annotation, since it is no address."""
    out: dict[str, Any] = {"name": name, "digest": _digest(digest)}
    if uri:
        out["uri"] = uri
    if path:
        out["annotations"] = {"path": path}
    return out
