"""Errors in a MirrorFlow are plain sentences without regular expressions or messages of libraries."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_operator.api import load
from mirrorflow_operator.api.load import load_flow
from mirrorflow_operator.api.mirror_pair import MirrorPair
from mirrorflow_operator.api.spec import MirrorFlow, Spec
from mirrorflow_operator.errors import InvalidSpecError

EXAMPLES = Path(__file__).parents[3] / "examples"
SMALLEST = (EXAMPLES / "valid" / "smallest.yaml").read_text()


def _patterns(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("pattern"), str):
            yield node["pattern"]
        for key, value in node.items():
            yield from [key] * (key.startswith("^")) if isinstance(value, dict) else ()
            yield from _patterns(value)
    elif isinstance(node, list):
        for value in node:
            yield from _patterns(value)


def _errors(lines: str) -> list[str]:
    with pytest.raises(InvalidSpecError) as raised:
        load_flow(f"{SMALLEST}{lines}\n")
    return [str(error) for error in raised.value.errors]


def test_each_pattern_of_the_schema_has_a_description() -> None:
    """The error shows the description instead of the pattern."""
    schemas = [MirrorFlow.model_json_schema(), MirrorPair.model_json_schema()]

    assert set(_patterns(schemas)) == load._FORMS.keys()


@pytest.mark.parametrize("path", sorted((EXAMPLES / "invalid").glob("*.yaml")), ids=lambda path: path.stem)
def test_no_error_contains_a_regular_expression_or_the_message_of_a_library(path: Path) -> None:
    with pytest.raises(InvalidSpecError) as raised:
        load_flow(path.read_text())

    for error in raised.value.errors:
        assert not re.search(r"\[a-z|\^|should match|after validation|Input should|valid integer", str(error))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            "  takeOverFrom: a",
            "spec.takeOverFrom: it should be a list: [a, b], or a line that begins with - for each entry; ",
        ),
        (
            "  connectors: {source: {tasks: 1.5}}",
            "spec.connectors.source.tasks: it should be a whole number, without quotes; ",
        ),
        ("  connectors: {source: {tasks: '2'}}", "it should be a whole number, without quotes; "),
        (
            "  groups: {syncOffsets: 'no'}",
            "spec.groups.syncOffsets: it should be true or false, without quotes; ",
        ),
        ("  groups: [a]", "spec.groups: it should be an object with fields of its own; "),
        ("  topics: {naming: {separator: ''}}", "spec.topics.naming.separator: it is empty; "),
        ("  topics: {include: ['']}", "spec.topics.include[0]: it is empty; "),
        (f"  version: {'a' * 65}", "spec.version: it should have at most 64 characters; "),
        (
            "  topics: {replicationFactor: 40000}",
            "spec.topics.replicationFactor: it should be at most 32767; ",
        ),
    ],
    ids=lambda value: value.strip() if value.startswith("  ") else "",
)
def test_a_wrong_value_is_described_in_plain_english(lines: str, expected: str) -> None:
    [error] = _errors(lines)

    assert expected in error


def test_an_error_for_an_enum_lists_its_values_once() -> None:
    """The description of the field would repeat the values."""
    assert _errors("  isolationLevel: Committed") == [
        "spec.isolationLevel: it should be 'ReadUncommitted' or 'ReadCommitted'."
    ]


def test_an_error_with_a_suggestion_ends_with_one_question_mark() -> None:
    assert _errors("  group: {}") == ["spec.group: it is not a field; did you mean groups?"]


def test_an_unknown_field_without_a_similar_one_lists_all_fields() -> None:
    [error] = _errors("  xyz: {}")

    assert error == f"spec.xyz: it is not a field; known fields: {', '.join(_known())}."
    assert {"seed", "verify", "restart", "internalRest"} <= _known().keys()


def _known() -> dict[str, None]:
    return {str(field.alias): None for field in Spec.model_fields.values()}


def test_null_values_are_treated_as_absent() -> None:
    """The API server removes them before it applies defaults."""
    assert load_flow((EXAMPLES / "empty-values.yaml").read_text()) == load_flow(SMALLEST)


def test_a_required_field_with_a_null_value_is_missing() -> None:
    [error] = _errors("  seed: {foreignRecords: }\n  verify: {output: {claimName: }}")

    assert error.startswith("spec.verify.output.claimName: it is missing; ")


def test_null_values_in_objects_of_kubernetes_are_kept() -> None:
    """The CRD does not define their fields, so the API server does not remove null values there."""
    flow = load_flow(f"{SMALLEST}  connectors: {{source: {{template: {{affinity: {{nodeAffinity: }}}}}}}}\n")

    assert flow.spec.connectors.source.template.affinity == {"nodeAffinity": None}


def test_a_time_without_quotes_is_a_text_as_kubectl_reads_it() -> None:
    """YAML 1.1 has numbers of base 60, which no reader of Kubernetes knows."""
    flow = load_flow(
        f"{SMALLEST}  connectors: {{source: {{template: {{annotations: {{window: 12:30}}}}}}}}\n"
    )

    assert {"window": "12:30"} == dict(flow.spec.connectors.source.template.annotations)
