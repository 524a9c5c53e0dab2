"""Hosts the connectors of a worker: their common interface, how each class is created, and their start order.

`host` is the only place that knows all classes: it maps settings to the object that runs them.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from mirrorflow_core.reports import ConnectorReport
from mirrorflow_core.settings import ConnectorSettings
from mirrorflow_replicator.connectors.checkpoint_connector import CheckpointConnector
from mirrorflow_replicator.connectors.heartbeat_connector import HeartbeatConnector
from mirrorflow_replicator.connectors.idle_connector import PAUSED, IdleConnector, PausedSource
from mirrorflow_replicator.connectors.source_host import SourceHost
from mirrorflow_replicator.http.samples import Samples

# A source that cannot be reached must not delay heartbeats to the target for long.
BESIDE_AFTER_S = 3.0
LOOK_S = 0.1


class ConnectorHost(Protocol):
    """One connector in this process. It survives every MirrorFlowError, reports it, and retries."""

    async def run(self) -> None:
        """Runs until cancelled. If it ends by itself, the process ends: a bug must not go unnoticed."""

    async def stop(self, grace_s: float) -> None:
        """Ends gracefully what has to be; `run` is cancelled afterwards."""

    def report(self) -> ConnectorReport:
        """Returns the current report of the connector; safe at any time."""

    @property
    def heard_of_all(self) -> bool:
        """Whether everything it does was reported once; before that, nothing may count as caught up."""

    @property
    def target_cluster_id(self) -> str:
        """The target's cluster id; "" before it was reached."""


def start(copying: Sequence[ConnectorHost], beside: Sequence[ConnectorHost]) -> list[asyncio.Task[None]]:
    """Runs the source connectors *copying* and the others, *beside*, each in its own asyncio task.

    Source connectors start first: the others would take CPU time from the first record, and a checkpoint
    connector would miss the offset-syncs topic, which the source connector is about to create.
    """
    return [
        *(asyncio.create_task(one.run()) for one in copying),
        *(asyncio.create_task(_run_beside(one, copying)) for one in beside),
    ]


async def _run_beside(hosted: ConnectorHost, copying: Sequence[ConnectorHost]) -> None:
    for _ in range(round(BESIDE_AFTER_S / LOOK_S)):
        if all(one.heard_of_all for one in copying):
            break
        await asyncio.sleep(LOOK_S)
    await hosted.run()


def host(connector: ConnectorSettings, *, samples: Samples) -> ConnectorHost | None:
    """Returns the host of *connector*; None if its settings require nothing to run."""
    if connector.source is not None and connector.is_paused:
        return PausedSource(connector, connector.source, samples=samples)
    if connector.is_paused and (connector.heartbeat is not None or connector.checkpoint is not None):
        properties = connector.properties
        return IdleConnector(connector.name, properties, state=PAUSED, tasks=(properties,))
    if connector.source is not None:
        return SourceHost(connector, connector.source, samples=samples)
    if connector.heartbeat is not None:
        return HeartbeatConnector(connector, connector.heartbeat)
    if connector.checkpoint is not None:
        return CheckpointConnector(connector, connector.checkpoint)
    return None
