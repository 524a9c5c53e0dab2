"""Moves the groups of the target to the translated offsets, unless they are active there.

No commit begins after a switchover has ended the flow: `may_write` is asked directly before each.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from mirrorflow_core.errors import ClusterError, GroupNotMovedError
from mirrorflow_core.offsets import checkpoints as decisions
from mirrorflow_core.offsets.checkpoints import CheckpointStore, Group, Writable, writable
from mirrorflow_core.offsets.offset_translation import Committed, TranslatedOffsets
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.error_codes import (
    OFFSET_METADATA_TOO_LARGE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    name_of,
)
from mirrorflow_kafka.admin import admin, groups
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.connectors.pass_warnings import GROUP, PassWarnings

# What to do about a partition that the target refuses to look up or to commit, by error code.
_ADVICE: Final = {
    TOPIC_AUTHORIZATION_FAILED: "Describe and Read on its topic are needed",
    UNKNOWN_TOPIC_OR_PARTITION: "its topic is missing; the source connector's warnings say why",
}


class GroupMover:
    """The groups of *target*, named *alias*, as last read and as moved since."""

    def __init__(
        self,
        target: Cluster,
        alias: str,
        store: CheckpointStore,
        warnings: PassWarnings,
        may_write: Callable[[], Awaitable[bool]],
    ) -> None:
        self._target = target
        self._alias = alias
        self._store = store
        self._warnings = warnings
        self._may_write = may_write
        self.groups: Mapping[str, Group] = {}  # as last listed
        self.offsets: dict[str, Mapping[TopicPartition, Committed]] = {}
        self.writable: dict[str, Writable] = {}
        self.moved = self.active = 0  # offsets that were committed; groups with members, as of the last pass
        # Commits whose metadata the target has refused, so that their offsets were committed without.
        self._refused_metadata: dict[str, dict[TopicPartition, Committed]] = {}

    def forget(self, group: str) -> None:
        """Drops what is known of *group*, which does not exist on the source any more."""
        self.offsets.pop(group, None)
        self.writable.pop(group, None)
        self._refused_metadata.pop(group, None)

    async def sync(self, translated: Mapping[str, TranslatedOffsets]) -> None:
        """Commits the *translated* offsets of all groups for those of the target, unless they are active there.

        Raises ClusterError if no broker of the target lists its groups.
        """
        target = self._target
        listed, problem = await groups.list_reachable_groups(target)
        self._warnings.note_listing(self._alias, problem)
        self.groups = listed
        names = [group for group in translated if self._store.of(group)]
        own = await groups.fetch_offsets_of(target, names)
        active = 0

        async def move(name: str) -> None:
            nonlocal active
            group = listed.get(name)
            is_unlisted = group is None and problem is not None
            if is_unlisted or (group is not None and not group.state):
                group = await groups.describe_group(target, name)
            self.writable[name] = writable(group)
            match self.writable[name]:
                case Writable.ACTIVE:
                    active += 1
                    self._note_refused_metadata(name, {})
                case Writable.OTHER_KIND:
                    kind = "" if group is None else (group.type or group.protocol_type).lower()
                    why = f"it exists there as a group of another kind ({kind})"
                    raise GroupNotMovedError(cluster=target.alias, group=name, why=why)
                case Writable.YES:
                    its = own[name]
                    if isinstance(its, ClusterError):
                        raise its
                    self.offsets[name] = its
                    self._note_refused_metadata(name, its)
                    if decisions.offsets_to_commit(self._store.of(name), translated[name], its):
                        active += await self._move(name, translated[name])

        alias = self._alias
        await self._warnings.for_each_group(
            names, move, "target", f"The offsets of group {GROUP} are not synchronised on {alias}"
        )
        self.active = active

    async def sync_moved(self, translated: Mapping[str, TranslatedOffsets]) -> None:
        """Commits *translated* offsets for the target's groups that were idle at the last pass; coordinators refuse the others."""

        async def move(name: str) -> None:
            if await self._move(name, translated[name]):
                self.writable[name] = Writable.ACTIVE
                self.active += 1

        names = [
            name
            for name, now in translated.items()
            if self.writable.get(name, Writable.YES) is Writable.YES
            and decisions.offsets_to_commit(self._store.of(name), now, self.offsets.get(name, {}))
        ]
        alias = self._alias
        await self._warnings.for_each_group(
            names,
            move,
            "target",
            f"The offsets of group {GROUP} are not synchronised on {alias}",
            is_pass=False,
        )

    async def _move(self, group: str, now: TranslatedOffsets) -> bool:
        """Commits *now* for an idle *group*; returns whether it was active after all. Raises ClusterError."""
        target = self._target
        if not await self._may_write():
            return False
        # Read right before the change, so that nothing committed until now is taken back.
        own = self.offsets[group] = await groups.fetch_offsets(target, group)
        self._note_refused_metadata(group, own)
        due = decisions.offsets_to_commit(self._store.of(group), now, own)
        if not due:
            return False
        # Behind the end, a consumer would apply its reset policy: the copy was re-created, or has lost its
        # tail.
        ends = await admin.list_offsets(target, due, LATEST)
        refused = {partition: _refusal(end.error) for partition, end in ends.items() if end.error}
        inside = {
            partition: Committed(offset=point.downstream_offset, metadata=point.metadata)
            for partition, point in due.items()
            if not ends[partition].error and point.downstream_offset <= ends[partition].offset
        }
        refused |= {
            partition: f"its copy ends at {ends[partition].offset}, before {due[partition].downstream_offset}"
            for partition in due.keys() - inside.keys() - refused.keys()
        }
        if not await self._may_write():  # the requests above may have taken seconds
            return False
        codes = await groups.commit_offsets(target, group, inside) if inside else {}
        too_large = {
            partition: inside[partition]
            for partition, code in codes.items()
            if code == OFFSET_METADATA_TOO_LARGE
        }
        if too_large and await self._may_write():
            without = {
                partition: Committed(offset=committed.offset) for partition, committed in too_large.items()
            }
            codes |= await groups.commit_offsets(target, group, without)
            inside |= without
        if groups.MEMBERS_PRESENT & set(codes.values()):
            return True
        done = {partition: inside[partition] for partition, code in codes.items() if not code}
        self.offsets[group] = {**own, **done}
        self.moved += len(done)
        self._refused_metadata.setdefault(group, {}).update(too_large)
        self._note_refused_metadata(group, self.offsets[group])
        refused |= {partition: _refusal(code) for partition, code in codes.items() if code}
        if refused:
            partition, why = min(refused.items())
            more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
            raise GroupNotMovedError(cluster=target.alias, group=group, why=f"{partition}: {why}{more}")
        return False

    def _note_refused_metadata(self, group: str, own: Mapping[TopicPartition, Committed]) -> None:
        """Warns of metadata that the target has refused, while its group stands where it was moved without. *own*: its offsets."""
        subject = ("metadata", group, "target")
        refused = {
            partition: committed
            for partition, committed in self._refused_metadata.pop(group, {}).items()
            if own.get(partition) == Committed(offset=committed.offset)
        }
        if not refused:
            self._warnings.note(subject, None)
            return
        self._refused_metadata[group] = refused
        partition, committed = min(refused.items())
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        alias = self._alias
        self._warnings.note(
            subject,
            f"Group {group} was moved on {alias} without the metadata of its offsets, because {alias} refuses it "
            f"({name_of(OFFSET_METADATA_TOO_LARGE)}): {len(committed.metadata)} characters for {partition}{more}; raise "
            "offset.metadata.max.bytes of its brokers (4096 by default).",
        )


def _refusal(code: int) -> str:
    advice = _ADVICE.get(code)
    return f"{name_of(code)} ({advice})" if advice else name_of(code)
