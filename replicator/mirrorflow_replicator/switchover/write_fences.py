"""Fences a cluster of a pair by the method that its user has chosen, and keeps the journal's note of it true.

The note is written before a fence is set, and again after it was lifted. So a process that resumes lifts all that may be there.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.switchover.observation import FenceState
from mirrorflow_core.topics.topic_acls import AclBinding
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_selection
from mirrorflow_replicator.switchover.acl_fence import AclFence, fenced_prefixes
from mirrorflow_replicator.switchover.errors import FenceUnavailableError
from mirrorflow_replicator.switchover.hooks import HookAction, SwitchoverHook
from mirrorflow_replicator.switchover.journal import SwitchoverJournal
from mirrorflow_replicator.switchover.pair_settings import FenceKind


class WriteFence(Protocol):
    """Keeps applications from writing to one cluster. Every method may be called again.

    *is_set*: by this process. If another process has set it, someone may have lifted it since, which no broker shows.
    *seen*: what `state` has returned last; None: it was not read.
    """

    is_set: bool
    seen: FenceState | None

    async def state(self) -> FenceState:
        """Returns how much of the fence is there. Raises ClusterError."""
        ...

    async def uncovered(self, topics: Collection[str]) -> frozenset[str]:
        """Returns those of *topics* for which `set` would add something to a complete fence: they were created since. Raises ClusterError."""
        ...

    async def plan(self, topics: Collection[str]) -> object:
        """Returns what `set` would add for *topics*. Raises FenceUnavailableError, ClusterError."""
        ...

    async def set(self, topics: Collection[str]) -> None:
        """Refuses writes to *topics*. Raises FenceUnavailableError, SwitchoverError, ClusterError."""
        ...

    async def lift(self) -> None:
        """Removes what `set` may have added, and nothing else. Raises as `set`."""
        ...


class DenyAclFence:
    """A fence of DENY ACLs, as `acl_fence` describes."""

    def __init__(
        self,
        cluster: Cluster,
        journal: SwitchoverJournal,
        *,
        except_principals: Collection[str],
        flow: SourceSettings | None = None,
    ) -> None:
        """*flow* selects the topics. Those that are created later are fenced as far as `acl_fence.fenced_prefixes` knows them."""
        self._acls = AclFence(cluster)
        self._cluster = cluster
        self._flow = flow
        self._alias = cluster.alias
        self._journal = journal
        self._except_principals = except_principals
        self._covered: frozenset[str] = frozenset()  # topics
        self.is_set = False
        self.seen: FenceState | None = None

    async def state(self) -> FenceState:
        self.seen = None  # while it is unknown
        self.seen = await self._state()
        return self.seen

    async def _state(self) -> FenceState:
        noted = self._journal.fence_of(self._alias).acls
        if not noted:
            return FenceState.ABSENT
        listed = await self._acls.listed(noted)
        if not listed.by_any:
            return FenceState.ABSENT
        return FenceState.COMPLETE if listed.by_all == noted else FenceState.PARTIAL

    async def set(self, topics: Collection[str]) -> None:
        noted = self._journal.fence_of(self._alias).acls
        acls = noted | await self.plan(topics)
        method = FenceKind.DENY_ACL
        await self._journal.write_fence(self._alias, FenceState.PARTIAL, method=method, acls=acls)
        await self._acls.create(acls)
        self.is_set, self._covered = True, frozenset(topics)

    async def uncovered(self, topics: Collection[str]) -> frozenset[str]:
        new = frozenset(topics) - self._covered
        if not new:
            return frozenset()
        try:
            missing = await self._acls.plan(new, except_principals=self._except_principals)
        except FenceUnavailableError:
            return new  # an ACL lets everybody write since
        uncovered = frozenset(acl.resource_name for acl in missing)
        self._covered |= new - uncovered
        return uncovered

    async def plan(self, topics: Collection[str]) -> frozenset[AclBinding]:
        prefixes = await self._prefixes()
        acls = await self._acls.plan(topics, except_principals=self._except_principals, prefixes=prefixes)
        if not acls and not self._journal.fence_of(self._alias).acls:
            raise FenceUnavailableError(
                cluster=self._alias,
                problem="there is nothing to deny: an administrator has denied writes to all topics of the flow already, or no ACL allows any",
                action="remove those ACLs, or write spec.fence.method: None",
            )
        return acls

    async def lift(self) -> None:
        noted = self._journal.fence_of(self._alias).acls
        if noted:
            await self._acls.lift(noted)
        await self._journal.write_fence(self._alias, FenceState.ABSENT, method=FenceKind.DENY_ACL)

    async def _prefixes(self) -> frozenset[str]:
        if self._flow is None or self._flow.topic_filter is not None:
            return frozenset()  # a filter of the user's own selects any topic
        existing = await admin.list_topics(self._cluster)
        flow = self._flow
        return fenced_prefixes(
            flow.topics, existing, make_selection(flow).selects, excluded=flow.topics_exclude
        )


class NotedFence:
    """A fence that only its note shows: what a hook or a NetworkPolicy does, or without one, that the user has stopped all producers."""

    def __init__(
        self,
        alias: str,
        journal: SwitchoverJournal,
        *,
        hook: SwitchoverHook | None,
        variables: Mapping[str, str],
        method: FenceKind = FenceKind.HOOK,
    ) -> None:
        """*method*: as what a fence by *hook* is noted."""
        self._alias = alias
        self._journal = journal
        self._hook = hook
        self._variables = {**variables, "MIRRORFLOW_MEMBER": alias}
        self._method = FenceKind.NONE if hook is None else method
        self.is_set = False
        self.seen: FenceState | None = None

    async def state(self) -> FenceState:
        self.seen = self._journal.fence_of(self._alias).state
        return self.seen

    async def set(self, topics: Collection[str]) -> None:
        await self._journal.write_fence(self._alias, FenceState.PARTIAL, method=self._method)
        await self._run(HookAction.FENCE)
        self.is_set = True
        await self._journal.write_fence(self._alias, FenceState.COMPLETE, method=self._method)

    async def uncovered(self, topics: Collection[str]) -> frozenset[str]:
        return frozenset()

    async def plan(self, topics: Collection[str]) -> None:
        pass

    async def lift(self) -> None:
        # Not noted before: that needs both clusters, and the other one may be lost. Until ABSENT is noted, it is lifted again.
        await self._run(HookAction.LIFT)
        await self._journal.write_fence(self._alias, FenceState.ABSENT, method=self._method)

    async def _run(self, action: HookAction) -> None:
        if self._hook is not None:
            await self._hook.run(action, self._variables)
