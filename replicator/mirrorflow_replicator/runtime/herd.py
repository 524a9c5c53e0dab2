"""All connectors of a process: those that its files name, which stay as they are (`Fixed`), or those of a distributed
worker's config topic (`runtime.herding`). `runtime.worker` serves either.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from mirrorflow_replicator.connect.commands import Command, SetLevel
from mirrorflow_replicator.connect.progress import has_started
from mirrorflow_replicator.connect.samples import Samples
from mirrorflow_replicator.connect.view import ConnectError, Request, Response
from mirrorflow_replicator.flow.report import ConnectorReport
from mirrorflow_replicator.runtime.hosted import Hosted, host, start
from mirrorflow_replicator.runtime.hosting import together
from mirrorflow_replicator.runtime.loggers import LOGGERS
from mirrorflow_replicator.settings import ConnectorSettings


class Herd(Protocol):
    """See the module."""

    takes_changes: bool  # whether `carry_out` does anything

    async def run(self) -> None:
        """Let the connectors work until cancelled; what ends it, ends the process."""

    async def stop(self, grace_s: float) -> None:
        """End them in order; `run` is cancelled afterwards."""

    def reports(self) -> tuple[ConnectorReport, ...]:
        """Each of them now; always safe to ask."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the herd as a whole could not do."""

    def is_ready(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether each connector has begun whatever it was to begin, for all that *reports*, of this moment, say."""

    def is_serving(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether the herd itself has: it knows its connectors and, if it takes commands, takes them now."""

    @property
    def target_cluster_id(self) -> str:
        """The target's own id; "" before it was reached."""

    async def carry_out(self, command: Command, request: Request) -> Response:
        """Do what a writing REST call asks for. Raises ConnectError, MirrorFlowError."""


class Fixed:
    """The connectors that files name."""

    takes_changes = False
    warnings: tuple[str, ...] = ()

    def __init__(self, connectors: Sequence[ConnectorSettings], *, samples: Samples) -> None:
        found = (host(connector, samples=samples) for connector in connectors)
        self.hosted: tuple[Hosted, ...] = tuple(one for one in found if one is not None)

    async def run(self) -> None:
        """Let them work; the end of one is the end of all."""
        await together(start(self.hosted))

    async def stop(self, grace_s: float) -> None:
        """End all of them at once."""
        await asyncio.gather(*(hosted.stop(grace_s) for hosted in self.hosted))

    def reports(self) -> tuple[ConnectorReport, ...]:
        """Each of them now."""
        return tuple(replace(hosted.report(), heard_of_all=hosted.heard_of_all) for hosted in self.hosted)

    def is_ready(self, reports: Sequence[ConnectorReport]) -> bool:
        """Whether all have started, and everything that they do was heard of once."""
        return has_started(tuple(reports)) and all(report.heard_of_all for report in reports)

    def is_serving(self, reports: Sequence[ConnectorReport]) -> bool:
        """Nothing can be asked of it before its connectors have started."""
        return self.is_ready(reports)

    @property
    def target_cluster_id(self) -> str:
        """Of the first that knows."""
        return next(filter(None, (hosted.target_cluster_id for hosted in self.hosted)), "")

    async def carry_out(self, command: Command, request: Request) -> Response:
        """Files are not changed over REST; a cluster of one worker has that one's loggers."""
        if isinstance(command, SetLevel):
            LOGGERS.set(command.name, command.level)
            return Response(status=204)
        raise ConnectError(501, f"{type(command).__name__} is for a distributed worker.")
