"""The test registry behaves as documented.

It is checked with the client of confluent-kafka, and request by request.
"""

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from tests.harness.schema_registry.__main__ import Registry, serve
from tests.harness.schema_registry.registry_model import RegistryModel

INT, LONG = Schema('"int"'), Schema('"long"')


@pytest.fixture
def client() -> Iterator[SchemaRegistryClient]:
    server = serve(Registry(None))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with SchemaRegistryClient({"url": f"http://127.0.0.1:{server.server_address[1]}"}) as registry:
        yield registry
    server.shutdown()
    server.server_close()


def test_confluents_client_registers_and_reads_schemas(client: SchemaRegistryClient):
    assert client.register_schema("orders-value", INT) == 1
    assert client.register_schema("orders-value", LONG) == 2
    assert client.register_schema("other-value", INT) == 1
    proto = Schema('syntax = "proto3"; message M {}', "PROTOBUF")
    assert client.register_schema("proto", proto) == 3

    assert client.get_subjects() == ["orders-value", "other-value", "proto"]
    assert client.get_versions("orders-value") == [1, 2]
    assert client.get_schema(2).schema_str == '"long"'
    assert client.get_schema(3).schema_type == "PROTOBUF"
    latest = client.get_latest_version("orders-value")
    assert (latest.schema_id, latest.version) == (2, 2)
    assert client.lookup_schema("orders-value", INT).version == 1


def test_confluents_client_deletes_softly_then_permanently(client: SchemaRegistryClient):
    client.register_schema("a", INT)
    client.register_schema("a", LONG)
    client.delete_version("a", 1)

    assert client.get_versions("a") == [2]
    assert client.get_schema(1).schema_str == '"int"'
    client.delete_subject("a")
    client.delete_subject("a", permanent=True)
    assert client.get_subjects() == []


def test_confluents_client_sets_compatibility_and_references(client: SchemaRegistryClient):
    client.set_compatibility(level="FULL")
    client.set_compatibility("a", "NONE")
    client.register_schema("common", INT)
    client.register_schema("a", Schema('"x"', "AVRO", [SchemaReference("C", "common", 1)]))

    assert (client.get_compatibility(), client.get_compatibility("a")) == ("FULL", "NONE")
    with pytest.raises(SchemaRegistryError, match="references exist"):
        client.delete_version("common", 1)
    with pytest.raises(SchemaRegistryError, match="No schema reference found"):
        client.register_schema("b", Schema('"y"', "AVRO", [SchemaReference("C", "common", 2)]))


def test_a_registry_in_import_mode_takes_ids_and_issues_none():
    """As in Confluent's page on migrating schemas, a POST has an id and a version while the mode is IMPORT."""
    model = RegistryModel()
    body = {"schema": '"int"', "id": 100, "version": 7}
    assert model.respond("POST", "/subjects/a/versions", body)[1]["error_code"] == 42205
    assert model.respond("PUT", "/mode", {"mode": "IMPORT"})[0] == 200

    assert model.respond("POST", "/subjects/a/versions", body) == (200, {"id": 100})
    assert model.respond("GET", "/subjects/a/versions") == (200, [7])
    assert model.respond("POST", "/subjects/a/versions", {"schema": '"long"'})[1]["error_code"] == 42205
    taken = {"schema": '"long"', "id": 100}
    assert model.respond("POST", "/subjects/b/versions", taken)[1]["error_code"] == 42205

    model.respond("PUT", "/mode", {"mode": "READWRITE"})
    assert model.respond("POST", "/subjects/b/versions", {"schema": '"long"'}) == (200, {"id": 101})
    assert model.respond("PUT", "/mode", {"mode": "IMPORT"})[1]["error_code"] == 42205
    assert model.respond("PUT", "/mode?force=true", {"mode": "IMPORT"})[0] == 200


def test_each_context_has_its_own_ids_and_modes():
    model = RegistryModel()
    model.respond("POST", "/subjects/a/versions", {"schema": '"int"'})
    model.respond("PUT", "/mode/:.east:", {"mode": "IMPORT"})
    body = {"schema": '"long"', "id": 1}

    assert model.respond("POST", "/subjects/:.east:a/versions", body) == (200, {"id": 1})
    assert model.respond("GET", "/schemas/ids/1") == (200, {"schema": '"int"', "schemaType": "AVRO"})
    assert model.respond("GET", "/schemas/ids/1?subject=:.east:")[1]["schema"] == '"long"'
    assert [value["subject"] for value in model.respond("GET", "/schemas?subjectPrefix=:.east:")[1]] == [
        ":.east:a"
    ]
    assert model.respond("POST", "/subjects/b/versions", {"schema": '"float"'}) == (200, {"id": 2})


def test_lists_are_returned_in_pages():
    model = RegistryModel(page=2)
    for number in range(5):
        model.respond("POST", "/subjects/a/versions", {"schema": f'"{number}"'})

    pages = [model.respond("GET", f"/schemas?offset={offset}&limit=1000")[1] for offset in (0, 2, 4, 5)]

    assert [[value["version"] for value in page] for page in pages] == [[1, 2], [3, 4], [5], []]


def test_a_registry_that_applies_the_same_records_has_the_same_content():
    first, second = RegistryModel(), RegistryModel()
    first.respond("POST", "/subjects/a/versions", {"schema": '"int"'})
    first.respond("PUT", "/config", {"compatibility": "NONE"})
    first.respond("DELETE", "/subjects/a/versions/1")
    for key, value in first.log:
        second.apply(key, value)

    assert (second.versions, second.configs) == (first.versions, first.configs)
