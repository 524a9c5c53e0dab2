"""A connector that does no work in this process: paused, stopped, without anything to do, or not to be started as it is."""

import asyncio
import time
from collections.abc import Mapping, Sequence

from mirrorflow_replicator.connect.herd import simple_name
from mirrorflow_replicator.errors import MirrorFlowError
from mirrorflow_replicator.flow.report import ConnectorReport, TaskReport


class StandIn:
    """Says of the connector with *properties* that it is in *state*, and so its tasks; *error* says why it failed."""

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
        """Wait to be cancelled."""
        await asyncio.Event().wait()

    async def stop(self, grace_s: float) -> None:
        """There is nothing to end."""

    def report(self) -> ConnectorReport:
        """The connector now."""
        properties, error = self._properties, self._error
        source, target = (properties.get(f"{side}.cluster.alias", "") for side in ("source", "target"))
        return ConnectorReport(
            name=self._name,
            connector_class=simple_name(properties.get("connector.class", "")),
            flow=properties.get("mirrorflow.flow", f"{source}->{target}"),
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
