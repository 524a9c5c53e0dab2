"""Predicts what consumer groups would read again on the other member of a pair, if applications were moved now. Nothing is changed.

A planned switchover moves each group once more before it promotes, so a group reads again only what its translation leaves open. If the
source were lost now, groups would begin where they stand on the target, and also read again what they have read since they were moved last.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mirrorflow_core.offsets.checkpoints import GroupOffset
from mirrorflow_replicator.switchover.group_pass import FinalGroupPass
from mirrorflow_replicator.switchover.pair_settings import PairClusters, SwitchoverSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAgain:
    """What all groups would read again at most. None: not known of one of them."""

    groups: int = 0
    planned_records: int | None = 0  # by a planned switchover
    lost_records: int | None = 0  # if the source were lost now
    lost_s: float | None = 0.0  # the time in which groups have read these


async def predict_read_again(settings: SwitchoverSettings, clusters: PairClusters, now_ms: int) -> ReadAgain:
    """Returns what the groups of the pair would read again. Raises ClusterError, InvalidSettingError."""
    if settings.forward_groups is None:
        return ReadAgain()
    final_pass = FinalGroupPass(settings.forward_groups, clusters)
    await final_pass.observe()
    return read_again(final_pass.offsets(), now_ms)


def read_again(offsets: Iterable[GroupOffset], now_ms: int) -> ReadAgain:
    """Returns what the groups of *offsets*, which were just read, would read again."""
    rows = [*offsets]
    behind = [row for row in rows if not row.written]
    written_ms = [row.checkpoint_written_ms for row in behind]
    known_ms = [at_ms for at_ms in written_ms if at_ms is not None]
    lost_s: float | None = None
    if len(known_ms) == len(behind):
        lost_s = max(0, now_ms - min(known_ms, default=now_ms)) / 1000
    return ReadAgain(
        groups=len({row.group for row in rows}),
        planned_records=_total(_planned(row) for row in rows),
        lost_records=_total(row.again[1] for row in rows),
        lost_s=lost_s,
    )


def _planned(row: GroupOffset) -> int | None:
    """Returns what is read again from where a planned switchover moves the group to; a group with members there is not moved."""
    if row.target_offset is None or row.at_most is None or row.has_members_on_target:
        return row.again[1] if row.written else None
    return max(0, row.at_most - max(row.target_offset, row.group_offset or 0))


def _total(counts: Iterable[int | None]) -> int | None:
    """Returns the sum of *counts*; None if one of them is."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
