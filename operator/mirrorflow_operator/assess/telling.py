"""What of a reading can make a difference to the status: two readings of one pod that tell the same need one look. Pure.

Figures are reduced to the questions that `assess` asks of them, by the same limits; whatever else a pod says is told as it is.
"""

from collections.abc import Hashable
from dataclasses import replace

from mirrorflow_operator.assess import told
from mirrorflow_operator.assess.progress import Checkpoints, Reach, Reading, SideSummary
from mirrorflow_operator.assess.replication import stale_after_s


def telling(reading: Reading) -> Hashable:
    """Equal for readings that are assessed alike."""
    summary = reading.summary
    if reading.report is not None:
        return reading.report  # a job is finite, and its figures are told
    if summary is None:
        return reading.unread
    long_s = stale_after_s(summary.checkpoints)
    figures = replace(
        summary,
        uptime_s=0.0,
        partitions_stopped=min(summary.partitions_stopped, 1),
        lag_records=min(summary.lag_records, 1),
        lag_s=None,
        records_per_s=0.0,
        bytes_per_s=0.0,
        reasons=tuple((word, 1) for word in sorted({word for word, _ in summary.reasons})),
        source=_side(summary.source),
        target=_side(summary.target),
        checkpoints=None if summary.checkpoints is None else _checkpoints(summary.checkpoints, long_s),
    )
    ages = told.is_young(summary), summary.uptime_s > long_s
    return figures, told.bucket(summary), summary.records_per_s > 0, ages


def _side(side: SideSummary) -> SideSummary:
    if side.reach is not Reach.UNREACHABLE or side.since_s is None:
        return replace(side, since_s=None)
    return replace(side, since_s=None if side.since_s >= told.UNREACHABLE_AFTER_S else 0.0)


def _checkpoints(done: Checkpoints, long_s: float) -> Checkpoints:
    age_s = None if done.age_s is None else float(done.age_s > long_s)
    return replace(done, groups=0, failing=min(done.failing, 1), age_s=age_s)
