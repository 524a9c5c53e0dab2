"""Invariants of the resource's types, from which the CRD is generated."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from mirrorflow_operator.api.load import load_flow
from mirrorflow_operator.api.spec import MirrorFlow, Spec, SyncMode
from mirrorflow_operator.api.workloads import ComputeAmounts
from mirrorflow_operator.errors import InvalidSpecError

SMALLEST = (Path(__file__).parents[3] / "examples" / "valid" / "smallest.yaml").read_text()


def _nodes(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        yield path, node
        for key, value in node.items():
            yield from _nodes(value, f"{path}/{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _nodes(value, f"{path}/{index}")


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _models(part)


def test_each_field_has_a_description() -> None:
    """`kubectl explain` shows it."""
    models = set(_models(MirrorFlow))

    assert len(models) > 20
    assert [] == [
        f"{model.__name__}.{name}"
        for model in models
        for name, field in model.model_fields.items()
        if not field.description
    ]


def test_each_list_string_and_map_is_bounded() -> None:
    """Otherwise CEL rules cost too much for the API server, and a status may be too large for etcd."""
    schema = Spec.model_json_schema(by_alias=True)

    unbounded = [
        path
        for path, node in _nodes(schema)
        if (node.get("type") == "array" and "maxItems" not in node)
        or (
            node.get("type") == "string"
            and "maxLength" not in node
            and "enum" not in node
            and "const" not in node
        )
        or (
            node.get("type") == "object"
            and "additionalProperties" in node
            and node["additionalProperties"] is not False
            and "maxProperties" not in node
        )
    ]

    assert [] == unbounded


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("  connectors: {source: {replicas: '2'}}", "spec.connectors.source.replicas"),
        ("  groups: {syncOffsets: 'yes'}", "spec.groups.syncOffsets"),
        ("  topics: {replicationFactor: true}", "spec.topics.replicationFactor"),
        (
            "  connectors: {source: {resources: {limits: {cpu: fast}}}}",
            "spec.connectors.source.resources.limits.cpu",
        ),
    ],
)
def test_a_value_of_a_wrong_type_is_refused(line: str, field: str) -> None:
    """Otherwise `mirrorflow validate` would accept a file that kubectl refuses."""
    with pytest.raises(InvalidSpecError) as raised:
        load_flow(f"{SMALLEST}{line}\n")

    assert [field] == [error.path for error in raised.value.errors]


def test_unquoted_numbers_are_quantities_and_unquoted_off_is_a_string() -> None:
    """Most people write `cpu: 1`. Reading `Off` as a string is specific to MirrorFlow (docs/mirrorflow-resource.md)."""
    flow = load_flow(
        f"{SMALLEST}  topics: {{acls: {{sync: Off}}}}\n"
        "  connectors: {source: {resources: {limits: {cpu: 1, memory: 1000}}}}\n"
    )

    assert (flow.spec.topics.acls.sync, flow.spec.connectors.source.resources.limits) == (
        SyncMode.OFF,
        ComputeAmounts(cpu=1, memory=1000),
    )
