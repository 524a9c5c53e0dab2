"""Versions in the responses of a registry, whose schemas are texts of any kind."""

import pytest

from mirrorflow_core.schemas.registry_contents import SchemaVersion, parse_version

NESTED = "[" * 100_000 + "]" * 100_000


def version(schema: str, schema_type: str = "JSON") -> SchemaVersion:
    body = {"subject": "orders-value", "version": 1, "id": 7, "schema": schema, "schemaType": schema_type}
    return parse_version(body)


def test_the_order_of_keys_and_spaces_do_not_distinguish_schemas():
    assert version('{"type": "int", "name": "a"}').content == version('{"name":"a","type":"int"}').content


@pytest.mark.parametrize(
    "schema", [NESTED, "9" * 10_000, "no JSON", ""], ids=["nested", "long", "text", "empty"]
)
def test_a_schema_that_cannot_be_parsed_is_compared_as_text(schema: str):
    """One client's schema must not keep those of others from being copied."""
    assert version(schema).content == version(f" {schema} ").content
    assert version(schema).content != version(f"{schema}x").content
