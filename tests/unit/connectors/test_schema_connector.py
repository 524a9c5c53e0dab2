"""What a schema connector reports of registries without conflicts; test registries in this process respond."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_core.reports import ConnectorReport
from mirrorflow_replicator.connectors.schema_connector import SchemaConnector
from tests.harness.schema_registry.registry_in_process import RunningRegistry
from tests.unit.connectors.test_schema_sync import register, settings_of

CONNECTOR = cast(
    "Any", SimpleNamespace(name="schemas", connector_class="MirrorSchemaConnector", properties={})
)


@pytest.fixture
def registries() -> Iterator[tuple[RunningRegistry, RunningRegistry]]:
    source, target = RunningRegistry(), RunningRegistry()
    yield source, target
    source.close()
    target.close()


def report(registries: tuple[RunningRegistry, RunningRegistry], *subjects: str) -> ConnectorReport:
    """Returns the report after a pass for *subjects*."""
    settings = settings_of(*(registry.url for registry in registries))
    connector = SchemaConnector(CONNECTOR, replace(settings, subjects=subjects))

    async def one_pass() -> None:
        with connector._sync:
            await connector._pass()

    asyncio.run(one_pass())
    return connector.report()


def test_a_connector_that_selects_no_subject_has_a_warning(
    registries: tuple[RunningRegistry, RunningRegistry], caplog: pytest.LogCaptureFixture
):
    """A mistyped expression, or credentials that show no subject, would look like a registry in sync."""
    register(registries[0].model, "orders-value", '"int"')

    (warning,) = report(registries, "ordrs.*").warnings

    assert warning.startswith("No subject of the registry of east is selected")
    assert warning in caplog.text


def test_a_connector_that_copies_subjects_has_no_warning(
    registries: tuple[RunningRegistry, RunningRegistry],
):
    register(registries[0].model, "orders-value", '"int"')

    assert report(registries, "orders.*").warnings == ()
