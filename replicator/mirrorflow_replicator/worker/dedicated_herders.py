"""Runs all flows of an mm2.properties; each flow is a group on its target, which other processes may join.

Guarantees: an error of one flow does not affect another. Connectors are shown with their flow before their
names, because every flow has connectors of the same names. REST changes no connector, because the file
defines what runs.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirrorflow_core.connect.session_keys import ConnectError
from mirrorflow_core.reports import ConnectorReport
from mirrorflow_replicator.connectors.source_host import together
from mirrorflow_replicator.http.commands import Command, SetLevel
from mirrorflow_replicator.http.loggers import LOGGERS
from mirrorflow_replicator.http.worker_view import Request, Response
from mirrorflow_replicator.worker.distributed_herder import DistributedHerder
from mirrorflow_replicator.worker.internal_rest import Flow, flow_of
from mirrorflow_replicator.worker.state_files import States


class DedicatedHerders:
    """One herder for each flow. *herds* maps (source alias, target alias) to its herder."""

    takes_changes = False

    def __init__(self, herds: Mapping[Flow, DistributedHerder]) -> None:
        self._herds = herds

    async def run(self) -> None:
        """Runs all herders; when one ends, all end."""
        await together(
            [asyncio.create_task(herd.run(), name=_name(flow)) for flow, herd in self._herds.items()]
        )

    async def stop(self, grace_s: float) -> None:
        """Stops all herders at the same time."""
        await asyncio.gather(*(herd.stop(grace_s) for herd in self._herds.values()))

    def set_states(self, states: States) -> None:
        """Does nothing: an mm2.properties is not followed."""

    def reports(self) -> tuple[ConnectorReport, ...]:
        """Reports each connector now."""
        return tuple(
            replace(report, name=f"{_name(flow)}.{report.name}")
            for flow, herd in self._herds.items()
            for report in herd.reports()
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of each flow, with the flow before them."""
        return tuple(
            f"{_name(flow)}: {warning}" for flow, herd in self._herds.items() for warning in herd.warnings
        )

    def is_ready(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether this node's part of each flow has started."""
        return all(herd.is_ready(herd.reports()) for herd in self._herds.values())

    @property
    def is_rebalancing(self) -> bool:
        """Whether any flow's group is rebalancing."""
        return any(herd.is_rebalancing for herd in self._herds.values())

    @property
    def has_connectors(self) -> bool:
        """Whether each flow has read its connectors."""
        return all(herd.has_connectors for herd in self._herds.values())

    def is_serving(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether each flow knows its connectors."""
        return all(herd.is_serving(()) for herd in self._herds.values())

    @property
    def target_cluster_id(self) -> str:
        """The target's id from the first flow that knows it; "" if none does."""
        return next(filter(None, (herd.target_cluster_id for herd in self._herds.values())), "")

    async def carry_out(self, command: Command, request: Request) -> Response:
        """Carries out another node's call for one of the flows. Raises ConnectError, MirrorFlowError."""
        if isinstance(command, SetLevel):
            LOGGERS.set(command.name, command.level)
            return Response(status=204)
        herd = self._herds.get(flow_of(request) or ("", ""))
        if herd is None:
            raise ConnectError(501, f"{type(command).__name__} is for a distributed worker.")
        return await herd.carry_out(command, request)


def _name(flow: Flow) -> str:
    return "->".join(flow)
