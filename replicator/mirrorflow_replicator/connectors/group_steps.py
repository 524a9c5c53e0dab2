"""Decides which groups a step between two passes handles: those that have moved, and those whose records the copy has reached since.

A pass reads all groups. Between two passes, the groups of the target follow within seconds: `connectors.group_follower` finds the
groups that have moved, and the news of the copy those that were ahead of it. `connectors.checkpoint_passes` handles them.
"""

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from itertools import islice
from typing import Final

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.offsets.offset_translation import Committed, TranslatedOffsets
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_replicator.connectors.group_follower import GroupFollower, Moved, Offsets
from mirrorflow_replicator.connectors.known_offsets import KnownOffsets

# Groups that one step handles at most. Each takes some three requests and 2 ms of processor time, so FOLLOWED_PER_S_MAX
# keeps a connector below a fifth of a core; where more groups move, each of them follows later.
FOLLOWED_AT_ONCE: Final = 64
FOLLOWED_PER_S_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStep:
    """The groups of one step with what they have committed, and for how many seconds to wait before the next step."""

    groups: Mapping[str, Moved]
    pause_s: float


class GroupSteps:
    """The steps between the passes of one connector. `open` comes before a pass, `begin` within it; then `next`, again and again."""

    def __init__(self, follower: GroupFollower, known: KnownOffsets) -> None:
        self._follower = follower
        self._known = known
        # Groups that have moved and are not handled yet, longest first, with what they have committed.
        self._moved: dict[str, dict[TopicPartition, Committed | None]] = {}
        # By source partition: commits that the copy, as far as it is known, has not reached yet.
        self._ahead: dict[TopicPartition, dict[str, Committed]] = {}
        self.ended_s: float | None = None  # end of the last pass or step, monotonic clock

    @property
    def followed_by(self) -> str:
        """The way in which groups are found."""
        return self._follower.followed_by.value

    @property
    def description(self) -> str:
        """`followed_by` with the reason, for the log."""
        why = self._follower.why_polled
        return f"{self.followed_by}, because {why}" if why else self.followed_by

    def take_other_groups(self) -> set[str]:
        """See `GroupFollower.take_other_groups`."""
        return self._follower.take_other_groups()

    async def open(self) -> None:
        """Call it before a pass reads the offsets of all groups."""
        await self._follower.open()

    async def begin(self, offsets: Offsets) -> Offsets:
        """Returns *offsets*, as the pass has just read them, with what has been committed since; the pass handles all of them."""
        newest = await self._follower.rebase(offsets)
        self._known.take_news()
        self._moved, self._ahead = {}, {}
        self.end()
        return newest

    async def next(self, names: Collection[str], read_syncs: Callable[[], Awaitable[None]]) -> GroupStep:
        """Returns the next step for the groups *names*; *read_syncs* reads the news of the copy. Raises ClusterError."""
        for group, moved in (await self._follower.moved(names)).items():
            self._moved.setdefault(group, {}).update(moved)
        if self._moved or self._ahead:
            await read_syncs()
            for partition in self._known.take_news():
                for group, committed in self._ahead.pop(partition, {}).items():
                    self._moved.setdefault(group, {}).setdefault(partition, committed)
        taken = {group: self._moved.pop(group) for group in list(islice(self._moved, FOLLOWED_AT_ONCE))}
        followed = {group: moved for group, moved in taken.items() if group in names}
        return GroupStep(
            groups=followed, pause_s=max(self._follower.pause_s, len(followed) / FOLLOWED_PER_S_MAX)
        )

    def note_ahead(
        self, group: str, offsets: Mapping[TopicPartition, Committed | None], now: TranslatedOffsets
    ) -> None:
        """Notes the partitions of *offsets* whose translation *now* becomes more precise with the next news of the copy."""
        for partition, committed in offsets.items():
            translated = now.get(self._known.rename(partition))
            is_ahead = (
                committed is not None
                and translated is not None
                and translated.translation != "exact"
                and not self._known.reaches(partition, committed.offset)
            )
            if is_ahead and committed is not None:
                self._ahead.setdefault(partition, {})[group] = committed
            elif partition in self._ahead:
                self._ahead[partition].pop(group, None)
                if not self._ahead[partition]:
                    del self._ahead[partition]

    def end(self) -> None:
        """Notes that a pass or a step has ended."""
        self.ended_s = time.monotonic()
