"""The part of a flow's page about schemas: what is copied, what conflicts, and why the registries cannot be compared."""

from typing import Any

import pytest

from mirrorflow_console.documents import connector_document, schemas_report
from mirrorflow_console.flow_views import Level
from mirrorflow_console.schema_views import CONFLICTS_SHOWN, SchemaView, schema_view
from mirrorflow_core.reports import ConnectorReport, SchemasReport
from tests.unit.console.flow_readings import healthy, table
from tests.unit.http.reports import NOW_S, connector, task

CONFLICT = "Version 3 of orders-value (id 17) cannot be copied: on the target that id is another schema."


def schemas_connector(
    *, missing: int = 0, conflicts: int = 0, passed_s: float | None = NOW_S - 4, **changes: Any
) -> ConnectorReport:
    schemas = SchemasReport(subjects=3, versions=7, missing=missing, conflicts=conflicts, passed_s=passed_s)
    return connector(task(), name="MirrorSchemaConnector", schemas=schemas, **changes)


def shown(report: ConnectorReport) -> SchemaView:
    """The view of a schema connector beside the source connector, which is that of one in a pod of its own."""
    document = connector_document(table(healthy(), report))
    view = schema_view([companion.received for companion in document.progress.companions], None)
    assert view is not None
    assert view == schema_view([], schemas_report(table(report)))
    return view


def test_schemas_in_sync_are_counted_with_the_age_of_the_comparison():
    view = shown(schemas_connector())

    assert (view.level, view.subjects, view.present, view.versions, view.age_s) == (Level.FINE, 3, 7, 7, 4.0)
    assert (view.problem, view.conflicts, view.advice) == ("", (), None)


def test_conflicts_are_shown_with_their_ids_and_what_to_do():
    view = shown(schemas_connector(missing=1, conflicts=1, warnings=(CONFLICT,)))

    assert (view.level, view.present, view.conflicts) == (Level.WARNING, 6, (CONFLICT,))
    assert view.advice is not None
    assert view.advice.title == "MirrorFlowSchemaConflicts"


def test_the_first_conflicts_are_shown_with_their_number():
    warnings = tuple(f"{CONFLICT} {number}" for number in range(CONFLICTS_SHOWN + 5))

    view = shown(schemas_connector(missing=30, conflicts=30, warnings=warnings))

    assert (view.conflicts, view.conflicts_total) == (warnings[:CONFLICTS_SHOWN], 30)


@pytest.mark.parametrize(
    ("changes", "level"), [({"missing": 1}, Level.WAITING), ({"passed_s": None}, Level.WAITING)]
)
def test_schemas_that_are_not_copied_yet_are_no_problem(changes: dict[str, Any], level: Level):
    assert shown(schemas_connector(**changes)).level is level


def test_a_registry_that_cannot_be_read_is_the_problem():
    view = shown(
        schemas_connector(state="FAILED", reason="RegistryUnreachable", trace="Registry B cannot be reached.")
    )

    assert (view.level, view.problem) == (Level.WARNING, "Registry B cannot be reached.")


def test_a_flow_without_registries_has_no_view():
    document = connector_document(table(healthy()))

    assert schema_view([companion.received for companion in document.progress.companions], None) is None
    assert schemas_report(table(healthy())) is None


@pytest.mark.parametrize("value", [None, [], {"connectors": 1}, {"connectors": [{"schemas": []}, 3]}])
def test_a_response_of_an_unexpected_form_has_no_schemas(value: Any):
    assert schemas_report(value) is None
