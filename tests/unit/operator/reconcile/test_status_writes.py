"""Changed figures in a status are written after a delay, so that several changes are written together."""

from typing import Any

import pytest

from mirrorflow_operator.api.status import ConnectorStatus, ConnectorStatuses, Lag, Phase, Status
from mirrorflow_operator.reconcile.status_writer import COUNTS_EVERY_S, FIGURES_EVERY_S, held_s

NOW_S = 1_795_000_000.0


def _status(*, lag: Lag = Lag.NONE, **source: Any) -> Status:
    return Status(lag=lag, connectors=ConnectorStatuses(source=ConnectorStatus(**source)))


@pytest.mark.parametrize(
    ("new", "expected_s"),
    [
        (_status(), None),
        (_status(lag=Lag.MORE), FIGURES_EVERY_S - 2),
        (_status(replicas=1), COUNTS_EVERY_S - 2),
        (_status(replicas=1, lag=Lag.MORE), COUNTS_EVERY_S - 2),
        (_status(phase=Phase.FAILED, replicas=1), 0.0),
    ],
    ids=["same", "lag", "count", "count-and-lag", "phase"],
)
def test_changes_of_figures_are_delayed(new: Status, expected_s: float | None):
    """The last write was two seconds before. The caller assesses again after the returned time."""
    assert expected_s == held_s(_status(), new, last_write_s=NOW_S - 2, now_s=NOW_S)


@pytest.mark.parametrize("last_write_s", [None, NOW_S - FIGURES_EVERY_S, NOW_S + 5])
def test_a_status_is_written_without_a_recent_write(last_write_s: float | None):
    """The process has written nothing, the delay is over, or the clock was set back."""
    assert held_s(_status(), _status(lag=Lag.MORE), last_write_s=last_write_s, now_s=NOW_S) == 0
