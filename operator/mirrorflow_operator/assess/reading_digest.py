"""Reduces a reading to what can change the status, so that equal digests cause no new pass. Pure.

Figures are reduced to the comparisons that `assess` makes, with the same limits; all other fields are kept.
"""

from collections.abc import Hashable
from dataclasses import replace

from mirrorflow_operator.assess import pod_progress
from mirrorflow_operator.assess.progress import Checkpoints, Reading, SideReachability, SideSummary
from mirrorflow_operator.assess.replication import stale_after_s


def telling(reading: Reading) -> Hashable:
    """Returns the digest of *reading*; equal for readings that lead to the same assessment."""
    summary = reading.summary
    if reading.report is not None:
        return reading.report  # a job is finite, and the status shows its figures
    if summary is None:
        return reading.unread
    long_s = stale_after_s(summary.checkpoints)
    figures = replace(
        summary,
        uptime_s=0.0,
        partitions_stopped=min(summary.partitions_stopped, 1),
        partitions_stalled=min(summary.partitions_stalled, 1),
        lag_records=min(summary.lag_records, 1),
        lags_unknown=min(summary.lags_unknown, 1),
        lag_s=None,
        records_per_s=0.0,
        bytes_per_s=0.0,
        reasons=tuple(sorted(summary.reasons)),
        source=_side(summary.source),
        target=_side(summary.target),
        checkpoints=None if summary.checkpoints is None else _checkpoints(summary.checkpoints, long_s),
    )
    ages = pod_progress.is_young(summary), summary.uptime_s > long_s
    return figures, pod_progress.bucket(summary), summary.records_per_s > 0, ages


def _side(side: SideSummary) -> SideSummary:
    if side.reach is not SideReachability.UNREACHABLE or side.since_s is None:
        return replace(side, since_s=None)
    return replace(side, since_s=None if side.since_s >= pod_progress.UNREACHABLE_AFTER_S else 0.0)


def _checkpoints(done: Checkpoints, long_s: float) -> Checkpoints:
    age_s = None if done.age_s is None else float(done.age_s > long_s)
    return replace(done, groups=0, failing=min(done.failing, 1), age_s=age_s)
