"""Reads what a restored cluster needs besides its records: the offsets of consumer groups, and the ACLs of topics.

A permission that is missing stops only what needs it, and is a sentence in `warnings`. Groups are read before the end
offsets of an increment, so a group's offset lies in what the archive then holds.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirrorflow_core.errors import (
    BrokerError,
    ClusterError,
    NotAuthorizedError,
    UnsupportedBrokerError,
)
from mirrorflow_core.offsets.checkpoints import GroupSelection
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import GROUPS_EXCLUDE
from mirrorflow_core.topics.topic_acls import TOPIC, AclBinding
from mirrorflow_core.wire.error_codes import SECURITY_DISABLED
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.groups import fetch_offsets, list_reachable_groups
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_seed.archive.manifest import ArchivedGroup, ArchivedOffset

GROUPS_KEY: Final = "archive.groups"
GROUPS_EXCLUDE_KEY: Final = "archive.groups.exclude"
# As a checkpoint connector: a coordinator answers one request of a connection at a time.
GROUPS_AT_ONCE: Final = 32


def group_selection(job_properties: Mapping[str, str]) -> GroupSelection | None:
    """Returns the groups whose offsets are archived or restored; None: those of no group. Raises InvalidSettingError."""
    include = _patterns(job_properties.get(GROUPS_KEY, ".*"))
    exclude = job_properties.get(GROUPS_EXCLUDE_KEY)
    if not include:
        return None
    return GroupSelection(include=include, exclude=GROUPS_EXCLUDE if exclude is None else _patterns(exclude))


def _patterns(text: str) -> tuple[str, ...]:
    return tuple(pattern.strip() for pattern in text.split(",") if pattern.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceGroups:
    """The groups of the source. `unread`: a group that has none here may have offsets, because it could not be read."""

    groups: tuple[ArchivedGroup, ...]
    read_ms: int
    unread: frozenset[str] = frozenset()
    is_complete: bool = True  # every broker has listed its groups
    warnings: tuple[str, ...] = ()

    def with_earlier(
        self, earlier: Sequence[ArchivedGroup], topics: Collection[str]
    ) -> tuple[ArchivedGroup, ...]:
        """Returns the groups with their offsets on *topics*, which the increment continues, and what stays of *earlier*.

        The archive keeps topics that were deleted or created again, so it keeps the offsets on them. A group that could not
        be read keeps all: an older offset skips nothing.
        """
        now, before = ({group.name: group.offsets for group in groups} for groups in (self.groups, earlier))
        merged = []
        for name in sorted(now.keys() | before.keys()):
            is_unread = name not in now and (name in self.unread or not self.is_complete)
            offsets = (
                *(offset for offset in now.get(name, ()) if offset.topic in topics),
                *(offset for offset in before.get(name, ()) if is_unread or offset.topic not in topics),
            )
            if offsets:
                merged.append(ArchivedGroup(name=name, offsets=tuple(sorted(offsets, key=_place))))
        return tuple(merged)


def _place(offset: ArchivedOffset) -> TopicPartition:
    return TopicPartition(offset.topic, offset.partition)


async def read_groups(cluster: Cluster, selection: GroupSelection, topics: Collection[str]) -> SourceGroups:
    """Returns the consumer groups of *selection* with offsets on *topics*. Raises ClusterError if no broker lists groups."""
    read_ms = time.time_ns() // 1_000_000
    try:
        listing = await list_reachable_groups(cluster)
    except NotAuthorizedError as error:
        warning = f"Offsets of groups are not archived ({GROUPS_KEY}= stops trying): {error}"
        return SourceGroups(groups=(), read_ms=read_ms, is_complete=False, warnings=(warning,))
    names = [
        name
        for name, group in sorted(listing.groups.items())
        if group.is_consumer_group and selection.selects(name)
    ]
    turn = asyncio.Semaphore(GROUPS_AT_ONCE)
    problems: dict[str, ClusterError] = {}

    async def read(name: str) -> ArchivedGroup:
        offsets: tuple[ArchivedOffset, ...] = ()
        async with turn:
            try:
                committed = await fetch_offsets(cluster, name)
            except ClusterError as error:
                problems[name] = error
            else:
                offsets = tuple(
                    ArchivedOffset(
                        topic=partition.topic,
                        partition=partition.partition,
                        offset=committed[partition].offset,
                        metadata=committed[partition].metadata,
                    )
                    for partition in sorted(committed)
                    if partition.topic in topics
                )
        return ArchivedGroup(name=name, offsets=offsets)

    groups = await asyncio.gather(*map(read, names))
    warnings = []
    if problems:
        first = problems[min(problems)]
        warnings.append(f"The offsets of {len(problems)} groups cannot be read: {first}")
    if listing.problem is not None:
        warnings.append(f"Not every broker of {cluster.alias} lists its groups: {listing.problem}")
    return SourceGroups(
        groups=tuple(group for group in groups if group.offsets),
        read_ms=read_ms,
        unread=frozenset(problems),
        is_complete=listing.problem is None,
        warnings=tuple(warnings),
    )


async def read_acls(cluster: Cluster) -> tuple[tuple[AclBinding, ...] | None, str | None]:
    """Returns the ACLs of topics, and a warning if there is one. None instead of ACLs if they cannot be read. Raises ClusterError."""
    try:
        return tuple(sorted(await admin.describe_acls(cluster, resource_type=TOPIC))), None
    except (NotAuthorizedError, UnsupportedBrokerError) as error:
        return None, f"Topic ACLs are not archived (sync.topic.acls.enabled=false stops trying): {error}"
    except BrokerError as error:
        if error.code != SECURITY_DISABLED:
            raise
        return (), None  # the source has no authorizer, and so no ACLs
