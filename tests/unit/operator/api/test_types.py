"""Invariants of every type of the resource, because the CRD is generated from them."""

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
        for at, value in enumerate(node):
            yield from _nodes(value, f"{path}/{at}")


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _models(part)


def test_every_field_is_described() -> None:
    """`kubectl explain` has a sentence for each."""
    models = set(_models(MirrorFlow))

    assert len(models) > 20
    assert [] == [
        f"{model.__name__}.{name}"
        for model in models
        for name, field in model.model_fields.items()
        if not field.description
    ]


def test_every_list_text_and_map_is_bounded() -> None:
    """An unbounded one makes CEL rules too costly for the API server, and a status too large for etcd."""
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
def test_a_value_of_another_type_is_refused(line: str, field: str) -> None:
    """Or a file that `mirrorflow validate` calls good would be refused by kubectl."""
    with pytest.raises(InvalidSpecError) as raised:
        load_flow(f"{SMALLEST}{line}\n")

    assert [field] == [error.path for error in raised.value.errors]


def test_bare_numbers_are_quantities_and_a_bare_off_is_a_text() -> None:
    """`cpu: 1` is what most people write; `Off` is ours alone (docs/mirrorflow-resource.md)."""
    flow = load_flow(
        f"{SMALLEST}  topics: {{acls: {{sync: Off}}}}\n"
        "  connectors: {source: {resources: {limits: {cpu: 1, memory: 1000}}}}\n"
    )

    assert (flow.spec.topics.acls.sync, flow.spec.connectors.source.resources.limits) == (
        SyncMode.OFF,
        ComputeAmounts(cpu=1, memory=1000),
    )
