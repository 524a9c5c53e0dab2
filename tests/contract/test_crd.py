"""The files of crds/ are generated from the current types, and API servers accept them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_operator.api.crd import RESOURCE_TYPES, ResourceType, definition, text

ROOT = Path(__file__).parents[2]
WRITTEN = ROOT / "crds"
CHART_COPIES = ROOT / "charts" / "mirrorflow" / "crds"
# Client-side apply stores the CRD as JSON in an annotation, and all annotations of an object have at most 262,144
# bytes. The remaining bytes are for annotations of other tools, such as Argo CD and Helm.
SIZE_MAX_BYTES = 254_000
FORBIDDEN = {
    "$ref",
    "anyOf",
    "oneOf",
    "allOf",
    "title",
    "examples",
    "const",
    "prefixItems",
    "patternProperties",
}


each_type = pytest.mark.parametrize("known", RESOURCE_TYPES, ids=lambda known: known.plural)


def _schema(known: ResourceType) -> dict[str, Any]:
    schema: dict[str, Any] = definition(known)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from _nodes(child, f"{path}.{name}".lstrip("."))
    for part in ("items", "additionalProperties"):
        if isinstance(node.get(part), dict):
            yield from _nodes(node[part], f"{path}[]")


@each_type
def test_the_crd_file_is_generated_from_the_current_types(known: ResourceType) -> None:
    """`make crds` rewrites it."""
    file = f"{known.plural}.yaml"

    assert text(known) == (WRITTEN / file).read_text() == (CHART_COPIES / file).read_text()
    assert len(json.dumps(definition(known), separators=(",", ":"))) < SIZE_MAX_BYTES


def test_each_crd_has_a_type() -> None:
    assert {f"{known.plural}.yaml" for known in RESOURCE_TYPES} == {path.name for path in WRITTEN.iterdir()}


@each_type
def test_the_schema_is_structural_and_bounded(known: ResourceType) -> None:
    """Each node has a type, each list, map and string has a bound, and no keyword is unsupported."""
    assert [] == [path for path, node in _nodes(_schema(known)) if FORBIDDEN & set(node)]
    untyped = [
        path
        for path, node in _nodes(_schema(known))
        if "type" not in node and "x-kubernetes-int-or-string" not in node
    ]
    unbounded = [
        path
        for path, node in _nodes(_schema(known))
        if path.startswith(("spec", "status"))
        and (
            (node.get("type") == "array" and "maxItems" not in node)
            or (node.get("type") == "string" and "maxLength" not in node and "enum" not in node)
            or (isinstance(node.get("additionalProperties"), dict) and "maxProperties" not in node)
        )
    ]

    assert ([], []) == (untyped, unbounded)


@each_type
def test_lists_shared_by_field_managers_have_no_default(known: ResourceType) -> None:
    """Default members have no owner, so they would stay when a field manager adds its own."""
    shared = [
        (path, node)
        for path, node in _nodes(_schema(known))
        if node.get("x-kubernetes-list-type") in {"set", "map"}
    ]

    assert shared
    assert [] == [path for path, node in shared if node.get("default")]


@each_type
def test_each_rule_has_a_message(known: ResourceType) -> None:
    """The error of a rule without a message is its source."""
    placed = sum(len(node.get("x-kubernetes-validations", ())) for _, node in _nodes(_schema(known)))

    assert placed == len(list(known.rules))
    assert [] == [path for path, rule in known.rules if not rule["message"]]


@each_type
def test_the_message_of_each_rule_has_an_action(known: ResourceType) -> None:
    """The action follows the problem after a semicolon, in both forms of the message."""
    sentences = [
        (path, sentence)
        for path, rule in known.rules
        for sentence in (rule["message"], rule.get("messageExpression", rule["message"]))
    ]

    assert [] == [sentence for sentence in sentences if not str(sentence[1]).partition("; ")[2]]


def test_a_rule_about_members_names_the_invalid_member() -> None:
    """The API server prints only the path of the list or map."""
    about_members = [
        (path, rule)
        for known in RESOURCE_TYPES
        for path, rule in known.rules
        if re.search(r"[.]all\(|exists\(", rule["rule"]) and "a != b" not in rule["rule"]
    ]

    assert about_members
    assert [] == [path for path, rule in about_members if "[0]" not in rule.get("messageExpression", "")]
