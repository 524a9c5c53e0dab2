"""What the worker holds of each connector, whatever its class, who hosts which, and who begins when.

`host` is the only place that knows all classes: settings -> the object that runs them.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from mirrorflow_replicator.connect.samples import Samples
from mirrorflow_replicator.flow.report import ConnectorReport
from mirrorflow_replicator.runtime.checkpointing import HostedCheckpoints
from mirrorflow_replicator.runtime.heartbeating import HostedHeartbeats
from mirrorflow_replicator.runtime.hosting import HostedConnector
from mirrorflow_replicator.runtime.paused import PAUSED, PausedSource
from mirrorflow_replicator.runtime.standing_in import StandIn
from mirrorflow_replicator.settings import ConnectorSettings

# A source that cannot be reached must not keep heartbeats from the target for long.
BESIDE_AFTER_S = 3.0
LOOK_S = 0.1


class Hosted(Protocol):
    """One connector in this process. It survives every MirrorFlowError, says so in its report, and tries again."""

    async def run(self) -> None:
        """Work until cancelled. Its own end is the end of the process: a mistake of ours is not to go unnoticed."""

    async def stop(self, grace_s: float) -> None:
        """End in order what has to be; `run` is cancelled afterwards."""

    def report(self) -> ConnectorReport:
        """The connector now; always safe to ask."""

    @property
    def heard_of_all(self) -> bool:
        """Whether everything that it does has been heard of once; before that, nothing may be called caught up."""

    @property
    def target_cluster_id(self) -> str:
        """The target's own id; "" before it was reached."""


def start(hosted: Sequence[Hosted]) -> list[asyncio.Task[None]]:
    """Run all of *hosted*, each in a task of its own.

    What copies goes first: the others would take processor time from the first record, and a checkpoint connector would
    miss the topic of offset syncs, which the source connector is about to make.
    """
    copying = [one for one in hosted if isinstance(one, HostedConnector)]
    beside = [one for one in hosted if not isinstance(one, HostedConnector)]
    return [
        *(asyncio.create_task(one.run()) for one in copying),
        *(asyncio.create_task(_run_beside(one, copying)) for one in beside),
    ]


async def _run_beside(hosted: Hosted, copying: Sequence[Hosted]) -> None:
    for _ in range(round(BESIDE_AFTER_S / LOOK_S)):
        if all(one.heard_of_all for one in copying):
            break
        await asyncio.sleep(LOOK_S)
    await hosted.run()


def host(connector: ConnectorSettings, *, samples: Samples) -> Hosted | None:
    """What runs *connector*; None where its settings ask for nothing."""
    if connector.source is not None and connector.is_paused:
        return PausedSource(connector, connector.source, samples=samples)
    if connector.is_paused and (connector.heartbeat is not None or connector.checkpoint is not None):
        properties = connector.properties
        return StandIn(connector.name, properties, state=PAUSED, tasks=(properties,))
    if connector.source is not None:
        return HostedConnector(connector, connector.source, samples=samples)
    if connector.heartbeat is not None:
        return HostedHeartbeats(connector, connector.heartbeat)
    if connector.checkpoint is not None:
        return HostedCheckpoints(connector, connector.checkpoint)
    return None
