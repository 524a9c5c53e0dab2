"""What holds for every type of the resource, because the CRD is generated from them."""

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from mirrorflow_operator.api.spec import MirrorFlow, Spec


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
