"""Finds out within seconds which groups of the source have moved, and to which offsets.

Two ways: the log of all commits, where this client may read `__consumer_offsets`; else requests about the groups that have moved
lately. Groups that rest cost nothing in either way. `connectors.checkpoint_passes` reads all groups from time to time, which is
the base of both.
"""

import asyncio
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final

from mirrorflow_core.errors import ClusterError, CorruptRecordsError
from mirrorflow_core.offsets.offset_translation import Committed
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin import groups
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.group_commit_log import GroupCommitLog

# A request about the ends of 50 partitions takes 1 ms of processor time, so four a second cost less than 1 % of a core.
LOG_EVERY_S: Final = 0.25
# Groups are polled that have moved within the last RECENT_S; consumers commit every 5 s by default.
POLL_EVERY_S: Final = 2.0
RECENT_S: Final = 600.0
# As long as a request about a group; passes report a cluster that does not answer.
LOG_TIMEOUT_S: Final = groups.GROUP_TIMEOUT_S
SILENT: Final = "the brokers do not answer"
POLLED_PER_S_MAX: Final = 500  # groups; more of them are polled less often
# None: the group has deleted its offset.
Moved = Mapping[TopicPartition, Committed | None]
Offsets = Mapping[str, Mapping[TopicPartition, Committed] | ClusterError]


class FollowedBy(Enum):
    """How the offsets of the source's groups are followed between two passes."""

    COMMIT_LOG = "commit-log"
    POLLS = "polls"


class GroupFollower:
    """Follows the groups of *source*. `open` comes before a pass over all groups, `rebase` after it."""

    def __init__(self, source: Cluster) -> None:
        self._source = source
        self._log: GroupCommitLog | None = None
        self._is_readable = True
        self.why_polled = ""  # why the log is not read
        self._other_groups: set[str] = set()
        self._last: dict[str, Mapping[TopicPartition, Committed]] = {}  # while polled
        self._moved_at: dict[str, float] = {}
        self._poll_at = 0.0

    @property
    def followed_by(self) -> FollowedBy:
        """The way in use."""
        return FollowedBy.POLLS if self._log is None else FollowedBy.COMMIT_LOG

    @property
    def pause_s(self) -> float:
        """How long to wait before the next `moved`."""
        if self._log is not None:
            return LOG_EVERY_S
        return max(LOG_EVERY_S, self._poll_at - asyncio.get_running_loop().time())

    def take_other_groups(self) -> set[str]:
        """Returns the groups that have committed since the last call, and are not among those that are followed."""
        others, self._other_groups = self._other_groups, set()
        return others

    async def open(self) -> None:
        """Begins to read the log, or those of its partitions that have a leader now; or finds out why it cannot be read.

        Groups are polled then: a broker that is down concerns only some of them.
        """
        if not self._is_readable:
            return
        log = self._log or GroupCommitLog(self._source)
        try:
            async with asyncio.timeout(LOG_TIMEOUT_S):
                await log.open()
        except (ClusterError, TimeoutError) as error:
            self._log, self.why_polled = None, str(error) or SILENT
            return
        if log is not self._log:
            self._log, self.why_polled = log, ""
            self._last, self._moved_at = {}, {}

    async def rebase(self, offsets: Offsets) -> dict[str, dict[TopicPartition, Committed] | ClusterError]:
        """Returns *offsets*, as just read of all groups, with what has been committed since."""
        newest = {
            group: its if isinstance(its, ClusterError) else dict(its) for group, its in offsets.items()
        }
        # The log is read up to an end that was looked up after *offsets* were read, so it ends with the newest commits.
        for group, moved in (await self._logged(offsets)).items():
            its = newest[group]
            if not isinstance(its, ClusterError):
                _apply(its, moved)
        if self._log is None:
            self._compare({group: its for group, its in newest.items() if not isinstance(its, ClusterError)})
            for gone in self._last.keys() - newest.keys():
                del self._last[gone]
                self._moved_at.pop(gone, None)
        return newest

    async def moved(self, names: Collection[str]) -> dict[str, Moved]:
        """Returns what the groups *names* have committed since the last call; nothing where they cannot be read now."""
        if self._log is not None:
            return dict(await self._logged(names))
        now = asyncio.get_running_loop().time()
        if now < self._poll_at:
            return {}
        recent = [
            name for name, moved_at in self._moved_at.items() if moved_at > now - RECENT_S and name in names
        ]
        self._poll_at = now + max(POLL_EVERY_S, len(recent) / POLLED_PER_S_MAX)
        if not recent:
            return {}
        fetched = await groups.fetch_offsets_of(self._source, recent)
        # A group that cannot be read now is read with the next pass, which reports it.
        return self._compare(
            {group: its for group, its in fetched.items() if not isinstance(its, ClusterError)}
        )

    async def _logged(self, names: Collection[str]) -> dict[str, dict[TopicPartition, Committed | None]]:
        """Returns the newest commits in the log, of the groups *names*."""
        if self._log is None:
            return {}
        try:
            async with asyncio.timeout(LOG_TIMEOUT_S):
                commits = await self._log.read_new()
        except (ClusterError, TimeoutError) as error:
            self._log, self.why_polled = None, str(error) or SILENT
            return {}
        except CorruptRecordsError as error:
            # Brokers of a later version may write other records; then the log is no use to this process.
            self._log, self._is_readable, self.why_polled = None, False, str(error)
            return {}
        moved: dict[str, dict[TopicPartition, Committed | None]] = {}
        for group, partition, committed in commits:
            if group in names:
                moved.setdefault(group, {})[partition] = committed
            elif committed is not None:  # the offsets of a deleted group are deleted, too
                self._other_groups.add(group)
        return moved

    def _compare(self, offsets: Mapping[str, Mapping[TopicPartition, Committed]]) -> dict[str, Moved]:
        """Stores *offsets*; returns those that differ from the last ones of their group."""
        now = asyncio.get_running_loop().time()
        moved: dict[str, Moved] = {}
        for group, its in offsets.items():
            last = self._last.get(group)
            self._last[group] = its
            if last is None or last == its:
                continue
            self._moved_at[group] = now
            changed: dict[TopicPartition, Committed | None] = dict.fromkeys(last.keys() - its.keys())
            changed.update(
                (partition, committed)
                for partition, committed in its.items()
                if last.get(partition) != committed
            )
            moved[group] = changed
        return moved


def _apply(offsets: dict[TopicPartition, Committed], moved: Moved) -> None:
    for partition, committed in moved.items():
        if committed is None:
            offsets.pop(partition, None)
        else:
            offsets[partition] = committed
