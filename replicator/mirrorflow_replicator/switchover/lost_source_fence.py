"""Fences a source that may be lost: as far as it answers, and never for longer than an unplanned switchover waits for it."""

import asyncio
from collections.abc import Collection
from typing import Final

from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.switchover import guards
from mirrorflow_core.switchover.observation import FenceState
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.switchover.errors import FenceUnavailableError
from mirrorflow_replicator.switchover.journal import SwitchoverJournal
from mirrorflow_replicator.switchover.pair_settings import FenceKind, SwitchoverSettings
from mirrorflow_replicator.switchover.source_probe import SourceProbe
from mirrorflow_replicator.switchover.write_fences import DenyAclFence, NotedFence, WriteFence

# Applications cannot write to either side meanwhile. A DENY ACL is set within 50 ms.
ATTEMPT_S: Final = 5.0
LONGEST_S: Final = (
    guards.FENCE_TRIED_MS / 1000
)  # for a hook or a NetworkPolicy, which may take minutes by its own limit


class LostSourceFence:
    """The fence of the source of an unplanned switchover. Its note is in the target's journal."""

    def __init__(self, settings: SwitchoverSettings, journal: SwitchoverJournal, probe: SourceProbe) -> None:
        self._settings = settings
        self._journal = journal
        self._probe = probe

    @property
    def can_be_tried(self) -> bool:
        """Whether the source answers, or its brokers are not needed."""
        return self._settings.fence is not FenceKind.DENY_ACL or self._probe.cluster is not None

    async def state(self) -> FenceState | None:
        """Returns how much of the fence is there; None if the source does not respond, and may be fenced. Raises ClusterError."""
        note = self._journal.fence_of(self._settings.source)
        if note.state is FenceState.ABSENT and not note.acls:
            return FenceState.ABSENT
        if not self.can_be_tried:
            return None
        try:
            async with asyncio.timeout(ATTEMPT_S):
                return await self._fence().state()
        except TimeoutError:
            return None

    async def set(self, topics: Collection[str]) -> None:
        """Refuses writes to *topics*. Raises FenceUnavailableError, HookFailedError, SwitchoverTakenError, ClusterError."""
        limit_s = self._limit_s()
        try:
            async with asyncio.timeout(limit_s):
                await self._fence().set(topics)
        except TimeoutError:
            raise FenceUnavailableError(
                cluster=self._settings.source,
                problem=f"it has not answered within {limit_s:g} s",
                action="keep applications away from it by other means",
            ) from None

    async def lift(self) -> None:
        """Removes what `set` may have added. Raises as `set`."""
        await self._fence().lift()

    def _limit_s(self) -> float:
        """Returns how long one attempt may take."""
        hook = self._settings.fence_hook
        return ATTEMPT_S if hook is None else min(max(ATTEMPT_S, hook.timeout_s), LONGEST_S)

    def _fence(self) -> WriteFence:
        settings = self._settings
        if settings.fence is FenceKind.DENY_ACL:
            principals = settings.except_principals
            return DenyAclFence(
                self._source(), self._journal, except_principals=principals, flow=settings.forward
            )
        return NotedFence(
            settings.source,
            self._journal,
            hook=settings.fence_hook,
            variables=settings.variables,
            method=settings.fence,
        )

    def _source(self) -> Cluster:
        if self._probe.cluster is None:
            client = self._settings.back.target_admin
            raise UnreachableError(
                cluster=self._settings.source,
                addresses=client.bootstrap_servers,
                problem="it does not answer, so its fence can neither be set nor lifted",
            )
        return self._probe.cluster
