"""Reports a connector that does no work here: paused, stopped, without work, or failed to start."""

import asyncio
import time
from collections.abc import Mapping, Sequence

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.naming.flow_id import flow_name
from mirrorflow_core.reports import ConnectorReport, TaskReport
from mirrorflow_replicator.http.command_decisions import simple_name


class IdleConnector:
    """Reports *state* for the connector with *properties* and for its tasks. *error* is why it failed."""

    heard_of_all = True
    target_cluster_id = ""

    def __init__(
        self,
        name: str,
        properties: Mapping[str, str],
        *,
        state: str,
        tasks: Sequence[Mapping[str, str]] = (),
        error: MirrorFlowError | None = None,
    ) -> None:
        self._name = name
        self._properties = properties
        self._state = state
        self._tasks = tuple(tasks)
        self._error = error
        self._started_at_s = time.time()

    async def run(self) -> None:
        """Waits to be cancelled."""
        await asyncio.Event().wait()

    async def stop(self, grace_s: float) -> None:
        """Does nothing: nothing is under way."""

    def report(self) -> ConnectorReport:
        """Returns the current report of the connector."""
        properties, error = self._properties, self._error
        source, target = (properties.get(f"{side}.cluster.alias", "") for side in ("source", "target"))
        return ConnectorReport(
            name=self._name,
            connector_class=simple_name(properties.get("connector.class", "")),
            flow=flow_name(properties.get("mirrorflow.flow", f"{source}->{target}")),
            source_alias=source,
            target_alias=target,
            properties=properties,
            state=self._state,
            trace="" if error is None else str(error),
            reason="" if error is None else error.reason,
            started_at_s=self._started_at_s,
            now_s=time.time(),
            tasks=tuple(TaskReport(task=number, state=self._state) for number in range(len(self._tasks))),
            task_properties=self._tasks,
            heard_of_all=True,
        )
