"""The process of a Switchover's Job runs in the replicator's image, which has no reader of resources."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_cli.errors import EXIT_DONE, EXIT_USAGE
from mirrorflow_cli.switchover_job import SwitchoverProgress, main
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from mirrorflow_operator.status.switchover_reports import parse_switchover_report

# What the extra `replicator` does not install, and the part of our code that needs it.
NOT_IN_THE_IMAGE = ("pydantic", "yaml", "rich", "kubernetes", "shtab", "mirrorflow_operator")


def test_it_needs_only_the_packages_of_the_replicator():
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in NOT_IN_THE_IMAGE)
    program = f"import sys; {blocked}; import mirrorflow_cli.switchover_job"

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert 0 == ended.returncode, ended.stderr


def test_files_that_are_missing_end_the_job_with_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The files of a Job never change, so another attempt would not help."""
    message = tmp_path / "message"
    monkeypatch.setenv("TERMINATION_MESSAGE", str(message))

    status = main([str(tmp_path)])

    report = parse_switchover_report(message.read_bytes())
    assert EXIT_DONE == status
    assert report is not None
    assert "Refused" == report.state
    assert "switchover.json" in report.reason


def _record(number: int, **fields: Any) -> SwitchoverRecord:
    given = {"type": SwitchoverType.PLANNED, "state": SwitchoverState.DONE, **fields}
    return SwitchoverRecord(
        id=f"pair/{number}",
        pair="pair",
        source="east",
        to="west",
        created_ms=1,
        epoch=number,
        **given,
    )


@pytest.mark.parametrize(
    ("known", "later", "state"),
    [
        (_record(1), _record(2), "Done"),
        (
            _record(1, state=SwitchoverState.ROLLING_BACK),
            _record(3, type=SwitchoverType.UNPLANNED, state=SwitchoverState.DEGRADED),
            "Overtaken",
        ),
        (
            _record(1, state=SwitchoverState.ROLLING_BACK),
            _record(3, type=SwitchoverType.UNPLANNED, state=SwitchoverState.LIFTED),
            None,
        ),
        (_record(1, state=SwitchoverState.DRAINING), _record(1, state=SwitchoverState.DRAINING), None),
    ],
    ids=["ended-before-a-later-one", "overtaken", "given-up", "newest"],
)
def test_a_record_that_a_later_switchover_has_superseded_is_reported_as_it_ended(
    known: SwitchoverRecord, later: SwitchoverRecord, state: str | None
):
    """No process can continue it: one that tried would wait without end."""
    progress = SwitchoverProgress(id=known.id)

    is_noted = progress.note_superseded(known, [known, later])

    read = parse_switchover_report(progress.body())
    assert read is not None
    assert (state is not None, state or "") == (is_noted, read.state)


def test_it_takes_one_folder():
    assert EXIT_USAGE == main([])
