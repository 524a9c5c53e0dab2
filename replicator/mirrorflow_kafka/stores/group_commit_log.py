"""Follows `__consumer_offsets` from its current end: which groups have committed which offsets since.

Needs Read on that topic. Guarantees: after `open`, each commit that counts later is returned once, in the order of its
partition, if that had a leader at `open`, and no partition without a leader delays the others, one with a leader that stands still by a second; also those of transactions that are open at `open` and began at most REREAD_OFFSETS_MAX before. A log that lost records, was created again or got other partitions
raises OffsetsLogChangedError: the caller opens it again and reads all groups. `mirrorflow_core.offsets.group_commits` decodes.
"""

import asyncio
import contextlib
import math
from collections.abc import Iterable, Mapping
from typing import Final

from mirrorflow_core.errors import BrokerError, ClusterError
from mirrorflow_core.offsets.group_commits import GROUP_OFFSETS_TOPIC, GroupCommit, PartitionCommits
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.error_codes import (
    NETWORK_EXCEPTION,
    OFFSET_NOT_AVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
    is_metadata_stale,
    is_retriable,
)
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import batches_between, read_once
from mirrorflow_kafka.admin.log_requests import LATEST, ListedOffset
from mirrorflow_kafka.client.cluster import Cluster

# The topic is created with the first group; until then there is nothing to read.
_CREATED_POLL_S: Final = 1.0
# Some seconds to read. A transaction that never ends holds the last stable offset, and all commits since could take
# longer than the caller waits, each time.
REREAD_OFFSETS_MAX: Final = 100_000
# A leader that has just moved is found in the second round, after 20 ms. All partitions wait for the rounds of one without a leader.
OPEN_ROUNDS_MAX: Final = 3
AWAY_POLL_S: Final = 1.0  # an election takes about as long
# A request about ends takes milliseconds. A broker that stands still (a long pause, a frozen machine) keeps its connections open:
# without a limit the commits of all groups would wait for it, for the timeout of the request.
SILENT_S: Final = 1.0
SILENT_POLL_S: Final = 5.0  # so a silent broker delays the others by a second in six at most


class OffsetsLogChangedError(ClusterError):
    """Raised when `__consumer_offsets` is not the log any more that was followed."""

    reason = "OffsetsLogChanged"
    retriable = True

    def __init__(self, *, cluster: str) -> None:
        super().__init__(
            f"{GROUP_OFFSETS_TOPIC} of {cluster} was created again, has lost records, or has more partitions; all groups are read again.",
            cluster=cluster,
        )


class SilentBrokersError(ClusterError):
    """Raised when no leader of `__consumer_offsets` answers in time."""

    reason = "SilentBrokers"
    retriable = True

    def __init__(self, *, cluster: str) -> None:
        super().__init__(
            f"No broker of {cluster} answers a request about the ends of {GROUP_OFFSETS_TOPIC} within {SILENT_S:g} s.",
            cluster=cluster,
        )


class GroupCommitLog:
    """The offset commits of one cluster. `open` comes first; one call at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._topic_id = ""
        self._next: dict[TopicPartition, int] = {}  # the offset to read next
        self._commits: dict[TopicPartition, PartitionCommits] = {}
        self._unopened: set[TopicPartition] = (
            set()
        )  # partitions without a leader, whose ends are not known yet
        self._away: set[TopicPartition] = set()  # those that were opened and have no leader now
        self._ask_away_at = 0.0  # loop time
        self._looked_s = 0.0

    async def open(self) -> None:
        """Notes where the log ends, as far as its partitions have leaders: no group commits where there is none.

        Call it again to follow the others: it notes the ends of those that have a leader since. Raises NotAuthorizedError without
        Read on the topic, and ClusterError, also if no partition has a leader.
        """
        is_first = not self._next
        partitions = await self._partitions() if is_first else sorted(self._unopened)
        if not partitions:
            return
        ends = await self._ends(partitions, rounds_max=OPEN_ROUNDS_MAX, must_have=is_first)
        # From the first open transaction on, because its commits count with a marker that is still to come.
        stable = await self._ends(ends, rounds_max=OPEN_ROUNDS_MAX, must_have=is_first, read_committed=True)
        self._next |= {
            partition: offset if ends[partition] - offset <= REREAD_OFFSETS_MAX else ends[partition]
            for partition, offset in stable.items()
        }
        self._commits |= {partition: PartitionCommits() for partition in stable}
        self._unopened = set(partitions) - stable.keys()
        if is_first:
            for partition in sorted(stable)[:1]:
                await read_once(self._cluster, partition, self._next[partition], max_bytes=1)

    async def read_new(self) -> list[GroupCommit]:
        """Returns the commits that count since the last call. Raises OffsetsLogChangedError and ClusterError.

        Those of a partition without a leader, or whose leader stands still, are returned when it has one that answers.
        """
        if not self._next and not await self._appeared():
            return []
        now = asyncio.get_running_loop().time()
        asks_all = now >= self._ask_away_at
        asked = [partition for partition in self._next if asks_all or partition not in self._away]
        ends, is_silent = await self._ends_by_leader(asked)
        self._away = self._next.keys() - ends.keys()
        if asks_all:
            self._ask_away_at = now + (SILENT_POLL_S if is_silent else AWAY_POLL_S)
        metadata = self._cluster.metadata
        topic = metadata.topics.get(GROUP_OFFSETS_TOPIC)
        if (
            metadata.topic_id(GROUP_OFFSETS_TOPIC) != self._topic_id
            or (topic is not None and len(topic.partitions) > len(self._next) + len(self._unopened))
            or any(end < self._next[partition] for partition, end in ends.items())
        ):
            raise OffsetsLogChangedError(cluster=self._cluster.alias)
        grown = [partition for partition, end in ends.items() if end > self._next[partition]]
        read = await asyncio.gather(*(self._read(partition, ends[partition]) for partition in grown))
        return [commit for commits in read for commit in commits]

    async def _ends_by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], bool]:
        """Returns the ends of those of *partitions* whose leader answers within SILENT_S, and whether one did not.

        The time for which a broker's quota delays its answer does not count. Raises ClusterError, also if none of several leaders
        answers, or the only one besides partitions without a leader.
        """
        now = asyncio.get_running_loop().time
        by_leader: dict[int | None, list[TopicPartition]] = {}
        for partition in partitions:
            by_leader.setdefault(self._cluster.leader(*partition), []).append(partition)

        timeout_s = SILENT_S if len(by_leader) > 1 else math.inf

        async def ends_of(led: list[TopicPartition]) -> dict[TopicPartition, int] | None:
            asked_s = now()
            listed = await admin.list_offsets(self._cluster, led, LATEST, rounds_max=1, timeout_s=timeout_s)
            # A broker that cannot be reached is known at once.
            if now() - asked_s >= timeout_s and all(
                result.error == NETWORK_EXCEPTION for result in listed.values()
            ):
                return None
            return self._valid_ends(listed, must_have=False)

        results = dict(zip(by_leader, await asyncio.gather(*map(ends_of, by_leader.values())), strict=True))
        ends = {partition: end for some in results.values() for partition, end in (some or {}).items()}
        is_silent = None in results.values()
        if is_silent:
            # Another broker may lead its partitions meanwhile.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SILENT_S):
                    await self._cluster.refresh([GROUP_OFFSETS_TOPIC])
        if (
            not ends
            and is_silent
            and all(results[leader] is None for leader in results if leader is not None)
        ):
            raise SilentBrokersError(cluster=self._cluster.alias)
        return ends, is_silent

    async def _ends(
        self,
        partitions: Iterable[TopicPartition],
        *,
        rounds_max: int,
        must_have: bool,
        read_committed: bool = False,
    ) -> dict[TopicPartition, int]:
        """Returns the ends of those of *partitions* that have a leader.

        Raises ClusterError for any other reason than a missing leader, and with *must_have* if none of them has one.
        """
        listed = await admin.list_offsets(
            self._cluster, partitions, LATEST, read_committed, rounds_max=rounds_max
        )
        return self._valid_ends(listed, must_have=must_have)

    def _valid_ends(
        self, listed: Mapping[TopicPartition, ListedOffset], *, must_have: bool
    ) -> dict[TopicPartition, int]:
        ends = {partition: result.offset for partition, result in listed.items() if not result.error}
        for partition, result in listed.items():
            may_heal = is_metadata_stale(result.error) or is_retriable(result.error)
            if not may_heal or (must_have and not ends):
                self._cluster.raise_for(result.error, "ListOffsets", str(partition))
        return ends

    async def _appeared(self) -> bool:
        """Returns whether the topic exists now; it is read from its beginning then."""
        now = asyncio.get_running_loop().time()
        if now < self._looked_s + _CREATED_POLL_S:
            return False
        self._looked_s = now
        self._next = dict.fromkeys(await self._partitions(), 0)
        self._commits = {partition: PartitionCommits() for partition in self._next}
        return bool(self._next)

    async def _partitions(self) -> list[TopicPartition]:
        await self._cluster.refresh([GROUP_OFFSETS_TOPIC])
        topic = self._cluster.metadata.topics.get(GROUP_OFFSETS_TOPIC)
        if topic is None or topic.error == UNKNOWN_TOPIC_OR_PARTITION:
            return []
        self._cluster.raise_for(topic.error, "Metadata", GROUP_OFFSETS_TOPIC)
        self._topic_id = self._cluster.metadata.topic_id(GROUP_OFFSETS_TOPIC)
        return [TopicPartition(GROUP_OFFSETS_TOPIC, number) for number in sorted(topic.partitions)]

    async def _read(self, partition: TopicPartition, end: int) -> list[GroupCommit]:
        """Reads up to *end*; the next call reads what a new leader does not serve yet. The other partitions do not wait for it."""
        commits: list[GroupCommit] = []
        batches = batches_between(self._cluster, partition, self._next[partition], end, unserved_max_s=0.0)
        try:
            async for batch, _ in batches:
                commits += self._commits[partition].take(batch)
                self._next[partition] = batch.next_offset
        except BrokerError as error:
            if error.code != OFFSET_NOT_AVAILABLE:
                raise
        return commits
