"""crds/mirrorflows.yaml is what the types say now, and what any API server can bear."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mirrorflow_operator.api.crd import definition, text
from mirrorflow_operator.api.rules.table import validations

ROOT = Path(__file__).parents[2]
WRITTEN = ROOT / "crds" / "mirrorflows.yaml"
OF_THE_CHART = ROOT / "charts" / "mirrorflow" / "crds" / "mirrorflows.yaml"
SIZE_MAX_BYTES = 240_000  # client-side apply keeps the whole, as JSON, in an annotation of at most 262,144
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


def _schema() -> dict[str, Any]:
    schema: dict[str, Any] = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, one in node.get("properties", {}).items():
        yield from _nodes(one, f"{path}.{name}".lstrip("."))
    for part in ("items", "additionalProperties"):
        if isinstance(node.get(part), dict):
            yield from _nodes(node[part], f"{path}[]")


def test_the_written_definition_is_what_the_types_say() -> None:
    """`make crds` writes it anew."""
    assert text() == WRITTEN.read_text() == OF_THE_CHART.read_text()
    assert len(json.dumps(definition(), separators=(",", ":"))) < SIZE_MAX_BYTES


def test_the_schema_is_structural_and_bounded() -> None:
    """Each node has a type, no list, map or text is without a bound, and nothing stands in it that is not understood."""
    assert [] == [path for path, node in _nodes(_schema()) if FORBIDDEN & set(node)]
    untyped = [
        path
        for path, node in _nodes(_schema())
        if "type" not in node and "x-kubernetes-int-or-string" not in node
    ]
    unbounded = [
        path
        for path, node in _nodes(_schema())
        if path.startswith(("spec", "status"))
        and (
            (node.get("type") == "array" and "maxItems" not in node)
            or (node.get("type") == "string" and "maxLength" not in node and "enum" not in node)
            or (isinstance(node.get("additionalProperties"), dict) and "maxProperties" not in node)
        )
    ]

    assert ([], []) == (untyped, unbounded)


def test_no_list_that_managers_share_has_members_by_default() -> None:
    """They would have no owner, and stay beside those of the first field manager that names some."""
    shared = [
        (path, node)
        for path, node in _nodes(_schema())
        if node.get("x-kubernetes-list-type") in {"set", "map"}
    ]

    assert shared
    assert [] == [path for path, node in shared if node.get("default")]


def test_each_rule_has_a_sentence_and_a_place() -> None:
    """A rule without a message answers with its own source."""
    placed = sum(len(node.get("x-kubernetes-validations", ())) for _, node in _nodes(_schema()))

    assert placed == len(list(validations()))
    assert [] == [path for path, rule in validations() if not rule["message"]]


def test_each_rule_says_what_to_do() -> None:
    """After what is wrong, as `validate` has it; where the server evaluates the sentence, and where it cannot."""
    sentences = [
        (path, sentence)
        for path, rule in validations()
        for sentence in (rule["message"], rule.get("messageExpression", rule["message"]))
    ]

    assert [] == [found for found in sentences if not found[1].partition("; ")[2]]


def test_a_rule_about_members_names_the_one_that_is_wrong() -> None:
    """The server prints the path of the list or the map, without an index or a key."""
    about_members = [
        (path, rule) for path, rule in validations() if re.search(r"[.]all\(|exists\(", rule["rule"])
    ]

    assert about_members
    assert [] == [path for path, rule in about_members if "[0]" not in rule.get("messageExpression", "")]
