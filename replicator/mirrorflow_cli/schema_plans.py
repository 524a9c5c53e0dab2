"""What `mirrorflow plan` and `check` show of a flow's schemas: what would be written to the target's registry, and conflicts."""

import asyncio
from collections.abc import Iterator
from typing import Any

from mirrorflow_cli.flow_arguments import worker_settings
from mirrorflow_cli.output import Findings
from mirrorflow_core.errors import RegistryError, SettingError
from mirrorflow_core.schemas.registry_requests import describe
from mirrorflow_core.schemas.schema_plan import SchemaPlan
from mirrorflow_core.settings import SchemaSettings
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.plan.properties import Plan
from mirrorflow_replicator.connectors.schema_sync import SchemaSync
from mirrorflow_replicator.http.progress_text import counted

STEPS_MAX = 20  # that are printed; `--json` has all


def schema_settings(planned: Plan) -> SchemaSettings | None:
    """Returns the settings of the schema connector; None if the flow has none. Raises SettingError."""
    for connector in planned.connectors:
        if connector.kind is ConnectorKind.SCHEMAS:
            return worker_settings(connector).connectors[0].schema
    return None


def plan_of(settings: SchemaSettings) -> SchemaPlan:
    """Reads both registries, and returns what would be written. Raises RegistryError, SettingError."""

    async def read() -> SchemaPlan:
        with SchemaSync(settings) as sync:
            return await sync.plan()

    return asyncio.run(read())


def check_schemas(settings: SchemaSettings, findings: Findings) -> None:
    """Reports whether both registries can be read, and which schemas cannot be copied under their ids."""
    try:
        plan = plan_of(settings)
    except (RegistryError, SettingError) as error:
        findings.problem(str(error))
        return
    findings.fact(f"both registries can be read; {summary(plan)}")
    for conflict in plan.conflicts:
        findings.problem(conflict.message)
    findings.would("register", [f"{counted(plan.missing - plan.missing_after, 'schema version')}"])


def summary(plan: SchemaPlan) -> str:
    """Returns the numbers of *plan*."""
    return (
        f"{counted(plan.versions, 'schema version')} of {counted(plan.subjects, 'subject')} match, "
        f"{plan.missing} of them missing on the target"
    )


def lines_of(plan: SchemaPlan) -> Iterator[str]:
    """Yields what is printed of *plan*."""
    yield f"copies schemas: {summary(plan)}"
    for step in plan.steps[:STEPS_MAX]:
        yield f"  would {describe(step)}"
    if len(plan.steps) > STEPS_MAX:
        yield f"  and {counted(len(plan.steps) - STEPS_MAX, 'step')} more; --json lists all"


def as_json(plan: SchemaPlan) -> dict[str, Any]:
    return {
        "subjects": plan.subjects,
        "versions": plan.versions,
        "missing": plan.missing,
        "steps": [describe(step) for step in plan.steps],
        "conflicts": [
            {
                "kind": conflict.kind.value,
                "context": conflict.subject.context,
                "subject": conflict.subject.name or None,
                "version": conflict.version,
                "message": conflict.message,
            }
            for conflict in plan.conflicts
        ],
    }
