"""All flows of an mm2.properties that several processes share: each flow is a group of its own, on its target.

Promises: one flow's trouble is not another's; connectors are shown with their flow before their names, for every flow has
connectors of the same names; nobody changes anything over REST, for what is to run is what the file says.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirrorflow_replicator.connect.commands import Command, SetLevel
from mirrorflow_replicator.connect.internal_rest import Flow, flow_of
from mirrorflow_replicator.connect.view import ConnectError, Request, Response
from mirrorflow_replicator.flow.report import ConnectorReport
from mirrorflow_replicator.runtime.grouped import Grouped
from mirrorflow_replicator.runtime.hosting import together
from mirrorflow_replicator.runtime.loggers import LOGGERS


class Flows:
    """See the module. *herds* by the aliases of source and target."""

    takes_changes = False

    def __init__(self, herds: Mapping[Flow, Grouped]) -> None:
        self._herds = herds

    async def run(self) -> None:
        """Let them work; the end of one is the end of all."""
        await together(
            [asyncio.create_task(herd.run(), name=_name(flow)) for flow, herd in self._herds.items()]
        )

    async def stop(self, grace_s: float) -> None:
        """End all of them at once."""
        await asyncio.gather(*(herd.stop(grace_s) for herd in self._herds.values()))

    def reports(self) -> tuple[ConnectorReport, ...]:
        """Each connector now."""
        return tuple(
            replace(report, name=f"{_name(flow)}.{report.name}")
            for flow, herd in self._herds.items()
            for report in herd.reports()
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What each flow could not do."""
        return tuple(
            f"{_name(flow)}: {warning}" for flow, herd in self._herds.items() for warning in herd.warnings
        )

    def is_ready(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether this node's part of each flow has begun."""
        return all(herd.is_ready(herd.reports()) for herd in self._herds.values())

    def is_serving(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether each flow knows its connectors."""
        return all(herd.is_serving(()) for herd in self._herds.values())

    @property
    def target_cluster_id(self) -> str:
        """Of the first that knows."""
        return next(filter(None, (herd.target_cluster_id for herd in self._herds.values())), "")

    async def carry_out(self, command: Command, request: Request) -> Response:
        """What another node asks of one of the flows. Raises ConnectError, MirrorFlowError."""
        if isinstance(command, SetLevel):
            LOGGERS.set(command.name, command.level)
            return Response(status=204)
        herd = self._herds.get(flow_of(request) or ("", ""))
        if herd is None:
            raise ConnectError(501, f"{type(command).__name__} is for a distributed worker.")
        return await herd.carry_out(command, request)


def _name(flow: Flow) -> str:
    return "->".join(flow)
