"""Schemas are copied to the target's registry with their ids, on real brokers and even if all processes are killed.

The registries are those of the harness, whose behaviour tests/unit/harness/test_schema_registry.py checks.
"""

import urllib.error
from functools import partial
from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.replicator import Replicator
from tests.harness.schema_registry.registry_model import RegistryModel
from tests.harness.schema_registry.registry_process import SchemaRegistry
from tests.integration.kafka.schemas import (
    fill,
    properties_of,
    record,
    registry_of,
    schema_process,
    schemas_of,
    wait_until_equal,
)

SUBJECTS = 10_000


def test_schema_changes_on_the_source_are_copied_to_the_target(
    west: KafkaCluster, source: SchemaRegistry, target: SchemaRegistry, tmp_path: Path
) -> None:
    source.register("unused-value", '"float"')
    source.register("orders-value", record("Order", "id"))
    with schema_process(west, properties_of(source, target), tmp_path) as replicator:
        wait_until_equal(source, target)
        reference = {"name": "Order", "subject": "orders-value", "version": 1}
        source.register("baskets-value", record("Basket"), references=[reference])
        source.register("orders-value", record("Order", "id", "customer"))
        source.request("DELETE", "/subjects/unused-value")
        source.request("PUT", "/config/orders-value", {"compatibility": "FULL"})
        wait_until_equal(source, target)
        path = "/config/orders-value"
        wait_until(
            "the compatibility has followed",
            lambda: _setting(target, path) == source.request("GET", path),
        )

        wait_until("the report is complete", lambda: schemas_of(replicator)["versions"] == 4)
        assert schemas_of(replicator)["missing"] == 0
        assert (
            replicator.rest("/connectors/MirrorSchemaConnector/status")[1]["tasks"][0]["state"] == "RUNNING"
        )
    assert target.request("GET", "/mode") == {"mode": "IMPORT"}


def _setting(registry: SchemaRegistry, path: str) -> object:
    try:
        return registry.request("GET", path)
    except urllib.error.HTTPError:
        return None


@pytest.mark.faults
def test_ten_thousand_subjects_are_copied_even_if_all_processes_are_killed(
    east: KafkaCluster, west: KafkaCluster, store: str, tmp_path: Path
) -> None:
    model = RegistryModel()
    for number in range(SUBJECTS):
        subject = f"topic-{number}-value"
        model.respond("POST", f"/subjects/{subject}/versions", {"schema": record(f"R{number % 7000}", "id")})
        if number % 100 == 0:
            body = {"schema": record(f"R{number}", "id", "name")}
            model.respond("POST", f"/subjects/{subject}/versions", body)
            model.respond("DELETE", f"/subjects/{subject}/versions/1")
    fill(east, store, [model])
    with registry_of(east, store, tmp_path) as source, registry_of(west, store, tmp_path) as target:
        replicator = schema_process(west, properties_of(source, target), tmp_path)
        for part in (0.2, 0.5, 0.8):
            with replicator:
                wait_until("a part has arrived", partial(_has_subjects, target, part * SUBJECTS))
                victim = {0.2: source, 0.5: target}.get(part)
                if victim is not None:
                    victim.kill()
                    victim.start()
                # The process ends by kill -9.
        with replicator:
            wait_until(
                "the report is complete",
                lambda: (
                    schemas_of(replicator).get("missing") == 0
                    and schemas_of(replicator)["subjects"] == SUBJECTS
                ),
            )

        assert target.export() == source.export()


def _has_subjects(registry: SchemaRegistry, count: float) -> bool:
    return len(registry.request("GET", "/subjects?deleted=true")) >= count


def test_schema_conflicts_are_reported_and_all_other_schemas_are_copied(
    west: KafkaCluster, source: SchemaRegistry, target: SchemaRegistry, tmp_path: Path
) -> None:
    source.register("orders-value", '"int"')
    source.register("other-value", '"long"')
    target.request("PUT", "/mode", {"mode": "IMPORT"})
    target.request("POST", "/subjects/own/versions", {"schema": '"bytes"', "id": 1, "version": 1})

    with schema_process(west, properties_of(source, target), tmp_path) as replicator:
        wait_until("the conflict is reported", lambda: schemas_of(replicator).get("conflicts") == 1)
        wait_until("the other one has arrived", lambda: "other-value" in target.request("GET", "/subjects"))

        assert "orders-value" in str(replicator.progress()["firstWarnings"])
        assert target.request("GET", "/subjects") == ["other-value", "own"]


def test_a_wrong_password_is_reported_and_a_corrected_one_is_used_without_a_restart(
    west: KafkaCluster, source: SchemaRegistry, tmp_path: Path
) -> None:
    source.register("orders-value", '"int"')
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "password").write_text("wrong\n")
    more = {
        "config.providers": "dir",
        "config.providers.dir.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
        "target.cluster.schema.registry.basic.auth.user.info": f"mirror:${{dir:{secret}:password}}",
    }
    with (
        SchemaRegistry(folder=tmp_path, name="guarded", arguments=("--user=mirror:right",)) as target,
        schema_process(west, properties_of(source, target) | more, tmp_path) as replicator,
    ):
        wait_until("the refusal is reported", lambda: "RegistryDenied" in str(replicator.progress()))
        (secret / "password").write_text("right\n")
        wait_until("the schema has arrived", lambda: schemas_of(replicator).get("registered") == 1)

        assert "right" not in replicator.log_text()


def test_an_mm2_properties_with_registries_copies_schemas(
    east: KafkaCluster,
    west: KafkaCluster,
    source: SchemaRegistry,
    target: SchemaRegistry,
    store: str,
    tmp_path: Path,
) -> None:
    source.register("orders-value", '"int"')
    alias = f"e{store[-15:-8]}"
    properties = {
        "clusters": f"{alias}, west",
        f"{alias}.bootstrap.servers": east.bootstrap,
        "west.bootstrap.servers": west.bootstrap,
        f"{alias}.schema.registry.url": source.url,
        "west.schema.registry.url": target.url,
        f"{alias}->west.enabled": "true",
        f"{alias}->west.topics": "none",
        f"{alias}->west.mirrorflow.schemas.contexts": ".:.east",
        f"west->{alias}.emit.heartbeats.enabled": "false",
        "replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "heartbeats.topic.replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
    }
    with Replicator.mm2(properties, folder=tmp_path):
        path = "/schemas/ids/1?subject=:.east:"
        wait_until("the schema has arrived", lambda: (_setting(target, path) or {}) != {})

    assert target.request("GET", "/subjects") == [":.east:orders-value"]
