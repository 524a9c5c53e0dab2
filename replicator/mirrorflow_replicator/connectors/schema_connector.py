"""Copies schemas from one registry to another with their ids (MirrorSchemaConnector, which MM2 does not have).

    read both registries ──> plan ──> write ──> wait for a new id on the source, at most until the next pass ──┐
            ^                                                                                                 │
            └──────────── any error: reported, retried after a backoff; a pass begins with what is there ─────┘

Guarantees: a schema that a record refers to has the same id on the target, or is reported as a conflict; two processes at once do no
harm, because every step may be repeated. There is no task process, and nothing is stored: the registries are the state.
"""

import asyncio
import logging
import time
from collections import Counter
from dataclasses import replace
from typing import Final

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.reports import ConnectorReport, SchemasReport, TaskReport
from mirrorflow_core.schemas.schema_plan import SchemaPlan
from mirrorflow_core.schemas.subject_mapping import SUBJECTS_KEY
from mirrorflow_core.settings import ConnectorSettings, SchemaSettings
from mirrorflow_replicator.connectors.connector_state import RetryState, report_of
from mirrorflow_replicator.connectors.schema_sync import SchemaSync

# Soft deletes, compatibility and modes follow within this time; a pass lists all versions.
PASS_INTERVAL_S: Final = 5.0
# A pass over a large registry takes seconds; it is not to be busy with us for more than a tenth of the time.
IDLE_FACTOR: Final = 9.0
NEW_ID_INTERVAL_S: Final = 1.0  # one request for a schema that does not exist
RETRY_MAX_S: Final = 15.0  # a registry restarts in seconds
WARNINGS_MAX: Final = 100  # conflicts that are named; they tend to be alike
log = logging.getLogger("mirrorflow.worker")


class SchemaConnector:
    """Runs one schema connector. `run` ends only by cancellation; everything else is safe to read at any time."""

    has_reported_all = True  # it has no partitions; `report` shows whether it works
    target_cluster_id: str | None = None

    def __init__(self, connector: ConnectorSettings, settings: SchemaSettings) -> None:
        self._connector = connector
        self._settings = settings
        self._started_at_s = time.monotonic()
        self._retry = RetryState(connector.name, pause_max_s=RETRY_MAX_S)
        self._sync = SchemaSync(settings)
        self._errors: Counter[str] = Counter()
        self._plan: SchemaPlan | None = None
        self._conflicts: frozenset[str] = frozenset()
        self._passed_s: float | None = None
        self._interval_s = PASS_INTERVAL_S

    async def run(self) -> None:
        with self._sync:
            while True:
                try:
                    began_s = time.monotonic()
                    await self._pass()
                    self._interval_s = max(PASS_INTERVAL_S, IDLE_FACTOR * (time.monotonic() - began_s))
                    await self._wait()
                except MirrorFlowError as error:
                    self._retry.failed(error)
                    self._errors[error.reason] += 1
                    await asyncio.sleep(self._retry.pause_s)

    async def stop(self, grace_s: float) -> None:
        """Does nothing: the next process continues from what the registries have."""

    async def _pass(self) -> None:
        plan = await self._sync.plan()
        self._plan = plan
        self._log_messages(plan)
        await self._sync.apply(plan)
        self._plan = replace(plan, missing=plan.missing_after)
        self._retry.succeeded()
        self._passed_s = time.monotonic()

    async def _wait(self) -> None:
        """Returns when the next pass is due, or when the source has a new schema."""
        due_s = time.monotonic() + self._interval_s
        while (left_s := due_s - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, NEW_ID_INTERVAL_S))
            if await self._sync.has_new_schema():
                return

    def _log_messages(self, plan: SchemaPlan) -> None:
        """Logs each message once, until it is over."""
        messages = self._messages(plan)
        for message in messages[:WARNINGS_MAX]:
            if message not in self._conflicts:
                log.warning("%s: %s", self._connector.name, message)
        self._conflicts = frozenset(messages)

    def _messages(self, plan: SchemaPlan) -> list[str]:
        """Returns a sentence for each conflict, or for a plan without any subject."""
        if plan.subjects or plan.conflicts:
            return [conflict.message for conflict in plan.conflicts]
        selected = f"{SUBJECTS_KEY} (spec.schemas.subjects) matches, or the credentials show none."
        return [
            f"No subject of the registry of {self._settings.source_alias} is selected: it has none that {selected}"
        ]

    def report(self) -> ConnectorReport:
        """Returns the current report."""
        problem = self._retry.problem
        state = "UNASSIGNED" if self._plan is None else "RUNNING"
        report = report_of(
            self._connector,
            self._settings,
            state=state if problem is None else "FAILED",
            problem=problem,
            started_at_s=self._started_at_s,
        )
        plan = self._plan
        return replace(
            report,
            tasks=(
                TaskReport(
                    task=0,
                    state=report.state,
                    trace=report.trace,
                    reason=report.reason,
                    errors=dict(self._errors),
                ),
            ),
            warnings=() if plan is None else tuple(self._messages(plan)[:WARNINGS_MAX]),
            schemas=SchemasReport(
                subjects=0 if plan is None else plan.subjects,
                versions=0 if plan is None else plan.versions,
                missing=0 if plan is None else plan.missing,
                conflicts=0 if plan is None else len(plan.conflicts),
                registered=self._sync.registered,
                passed_s=self._passed_s,
                interval_s=self._interval_s,
            ),
        )
