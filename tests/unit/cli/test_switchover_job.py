"""The process of a Switchover's Job. It runs in the image of the replicator, which cannot read resources."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_cli import switchover_process
from mirrorflow_cli.errors import EXIT_DONE, EXIT_USAGE
from mirrorflow_cli.switchover_job_progress import MESSAGE_MAX_BYTES, SwitchoverProgress
from mirrorflow_cli.switchover_process import CANARY_UNKNOWN, SwitchoverProcess, main
from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.switchover.canary import CanaryRequest, CanaryResult, CanaryTimeline
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.state_machine import SwitchoverStep
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from mirrorflow_operator.status.switchover_reports import SwitchoverReport, parse_switchover_report
from mirrorflow_replicator.switchover.errors import CanaryFailedError
from mirrorflow_replicator.switchover.job_settings import SwitchoverJob

# What the extra `replicator` does not install, and the package of MirrorFlow that needs it.
NOT_IN_THE_IMAGE = ("pydantic", "yaml", "rich", "kubernetes", "shtab", "mirrorflow_operator")


def test_the_job_needs_only_the_packages_of_the_replicator():
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in NOT_IN_THE_IMAGE)
    program = f"import sys; {blocked}; import mirrorflow_cli.switchover_process"

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert 0 == ended.returncode, ended.stderr


def test_missing_files_end_the_job_with_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The files of a Job never change, so that a further attempt would not help."""
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
def test_a_superseded_switchover_is_reported_as_it_ended(
    known: SwitchoverRecord, later: SwitchoverRecord, state: str | None
):
    """A process that tried to continue it would wait forever."""
    progress = SwitchoverProgress(id=known.id)

    is_noted = progress.note_superseded(known, [known, later])

    read = parse_switchover_report(progress.body())
    assert read is not None
    assert (state is not None, state or "") == (is_noted, read.state)


def test_a_planned_switchover_reports_its_promotion_after_an_unplanned_one_was_rolled_back():
    """The later one was given up, so the planned one continues. Its epoch is lower, but it has promoted last."""
    known = _record(5, state=SwitchoverState.FORWARD_ENDED)
    later = _record(7, type=SwitchoverType.UNPLANNED, state=SwitchoverState.LIFTED)
    progress = SwitchoverProgress(id=known.id)
    progress.note_journal([known, later])

    progress.note_step(SwitchoverStep(known.moved_to(SwitchoverState.PROMOTING, 2)), None)

    report = parse_switchover_report(progress.body())
    assert report is not None
    assert ("west", known.id, 7) == (report.active, report.promoted_by, report.epoch)


def test_an_end_is_reported_only_with_everything_that_is_known_of_it():
    """The operator keeps the first report of an end, and reads no later one."""
    progress = SwitchoverProgress(id="pair/5")
    reversing = _record(5, state=SwitchoverState.PROMOTING).moved_to(SwitchoverState.REVERSING, 7)
    done = reversing.moved_to(SwitchoverState.DONE, 9)
    progress.note_step(SwitchoverStep(reversing), None)
    before = parse_switchover_report(progress.body())
    progress.note_step(SwitchoverStep(done), None)
    early = parse_switchover_report(progress.body())
    progress.note_end(done, ["Restart producers."])
    ended = parse_switchover_report(progress.body())

    assert before is not None
    assert early is not None
    assert ended is not None
    assert ("Reversing", before.since, before.states) == (early.state, early.since, early.states)
    assert ("Done", ("Restart producers.",)) == (ended.state, ended.notes)
    assert ["Reversing", "Done"] == [entry.state for entry in ended.states]


@pytest.mark.timeout(20)
def test_a_report_of_long_names_that_are_not_ascii_still_fits_into_a_termination_message():
    """Kafka allows any character in the name of a group. A message that never fits would keep the Job from ending."""
    progress = SwitchoverProgress(id=f"{'p' * 50}/{'s' * 50}")
    name = "\U0001d11e" * 255
    sentence = f"Canary group {name} has read 3 records again."
    counts = {"recordsReadAgain": 3, "recordsSkipped": 0, "seconds": {"copied": 1.5}}

    progress.note_canary({"passed": False, "sentence": sentence, "topic": "canary", "group": name, **counts})
    progress.note_end(_record(1, type=SwitchoverType.REHEARSAL, state=SwitchoverState.REHEARSED), ())
    body = progress.body()

    report = parse_switchover_report(body)
    assert len(body) <= MESSAGE_MAX_BYTES
    assert report is not None
    assert report.canary is not None
    assert (report.state, report.canary.passed, report.canary.records_read_again) == ("Rehearsed", False, 3)


def test_the_job_needs_a_folder_as_its_argument():
    assert EXIT_USAGE == main([])


class LostSource:
    """A pair whose source does not respond until a new process has tried *attempts* times.

    It records runs and reports.
    """

    def __init__(self, record: SwitchoverRecord, *, attempts: int = 3) -> None:
        self.record = record
        self.later: tuple[SwitchoverRecord, ...] = ()
        self.attempts = attempts
        self.runs: list[str] = []
        self.reports: list[SwitchoverReport] = []  # of each failed attempt but the first
        self.checks = SimpleNamespace(notes=())
        self.flows = SimpleNamespace(reverse=lambda: asyncio.sleep(0, SimpleNamespace(started_by="")))
        self.journal = self.runner = self

    @property
    def records(self) -> tuple[SwitchoverRecord, ...]:
        return (self.record, *self.later)

    async def read(self) -> None:
        """Does nothing, because everything is already read."""

    async def run(self, record: SwitchoverRecord, *, until: Any = None) -> SwitchoverRecord:
        assert record == self.record
        self.runs.append("both" if until is None else "target alone")
        state = SwitchoverState.DONE if until is None else SwitchoverState.REVERSING
        self.record = record if record.state is state else record.moved_to(state, 2_000)
        return self.record

    def process(self, monkeypatch: pytest.MonkeyPatch, **job: Any) -> SwitchoverProcess:
        settings = SimpleNamespace(pair="pair", source="east", to="west", limits=self.record.limits)
        given = {"id": self.record.id, "type": SwitchoverType.PLANNED, **job}
        process = SwitchoverProcess(
            job=SwitchoverJob(
                settings=cast("Any", settings), allows_live_groups=False, begin_until_ms=0, **given
            ),
            progress=SwitchoverProgress(id=given["id"]),
        )

        @contextlib.asynccontextmanager
        async def both(*_: object, **__: object) -> AsyncIterator[Any]:
            self.attempts -= 1
            if process.progress.record is not None:
                report = parse_switchover_report(process.progress.body())
                assert report is not None
                self.reports.append(report)
            if self.attempts >= 0:
                raise UnreachableError(cluster="east", addresses="east:9092", problem="no response")
            yield self

        @contextlib.asynccontextmanager
        async def alone(*_: object, on_step: Any, **__: object) -> AsyncIterator[Any]:
            on_step(SwitchoverStep(self.record), "")
            yield self

        async def journal(_: object) -> Any:
            return self

        monkeypatch.setattr(switchover_process, "switchover_session", both)
        monkeypatch.setattr(switchover_process, "unplanned_session", alone)
        monkeypatch.setattr(switchover_process, "journal_of_target", journal)
        monkeypatch.setattr(switchover_process, "RETRY_S", 0)
        return process


def test_a_new_process_promotes_without_the_source_and_later_starts_the_reverse_flow(
    monkeypatch: pytest.MonkeyPatch,
):
    """The endpoint is switched once, not at each attempt to connect to the source."""
    world = LostSource(_record(1, state=SwitchoverState.PROMOTING))
    process = world.process(monkeypatch)

    asyncio.run(asyncio.wait_for(process.run(), 60))

    assert ["target alone", "both"] == world.runs
    assert {("Reversing", "west", "pair/1", False)} == {
        (report.state, report.active, report.promoted_by, report.may_copy_back) for report in world.reports
    }
    assert all(
        report.waits_for.startswith("Applications run on west. Waits until east responds again")
        for report in world.reports
    )
    ended = parse_switchover_report(process.progress.body())
    assert ended is not None
    assert ("Done", True) == (ended.state, ended.may_copy_back)


def test_an_ended_switchover_is_reported_although_its_source_is_lost(monkeypatch: pytest.MonkeyPatch):
    """Its last report was lost with its pod. While the status is Reversing, no other Switchover of the pair may begin."""
    world = LostSource(_record(1, state=SwitchoverState.DONE), attempts=1)
    process = world.process(monkeypatch)

    asyncio.run(asyncio.wait_for(process.run(), 60))

    assert [] == world.runs
    report = parse_switchover_report(process.progress.body())
    assert report is not None
    assert ("Done", "west", True) == (report.state, report.active, report.may_copy_back)


def test_an_overtaken_switchover_does_not_wait_for_the_source(monkeypatch: pytest.MonkeyPatch):
    """The unplanned Switchover was deleted, so the operator created the Job of the planned one again."""
    world = LostSource(_record(1, state=SwitchoverState.DRAINING), attempts=1)
    world.later = (_record(3, type=SwitchoverType.UNPLANNED, state=SwitchoverState.DEGRADED),)
    process = world.process(monkeypatch)

    asyncio.run(asyncio.wait_for(process.run(), 60))

    assert [] == world.runs
    report = parse_switchover_report(process.progress.body())
    assert report is not None
    assert ("Overtaken", "west", "pair/3") == (report.state, report.active, report.promoted_by)


@pytest.mark.parametrize(
    ("record", "job"),
    [
        (_record(1, state=SwitchoverState.FORWARD_ENDED), {}),
        (_record(1, state=SwitchoverState.PROMOTING), {"id": "pair/2"}),
        (_record(1, state=SwitchoverState.PROMOTING), {"type": SwitchoverType.REHEARSAL}),
    ],
    ids=["not-promoted", "of-another-switchover", "of-another-type"],
)
def test_only_a_promoted_switchover_of_this_job_continues_without_the_source(
    monkeypatch: pytest.MonkeyPatch, record: SwitchoverRecord, job: dict[str, Any]
):
    world = LostSource(record)
    process = world.process(monkeypatch, **job)

    error = UnreachableError(cluster="east", addresses="east:9092", problem="no response")

    is_ended = asyncio.run(process._ends_without_source(error))

    assert (False, []) == (is_ended, world.runs)
    assert (None, str(error)) == (process.progress.record, process.progress.waits_for)


class RehearsedPair:
    """A pair whose rehearsal shows two states and succeeds, and whose canary is simulated."""

    def __init__(self, *known: SwitchoverRecord) -> None:
        self.known = known
        self.states: list[SwitchoverState] = []  # as the canary has noted them
        self.reported = ""  # the state that is reported while the canary still runs
        self.is_running = False
        self.process: SwitchoverProcess | None = None
        self.checks = SimpleNamespace(notes=())
        self.on_step: Callable[[SwitchoverStep, str], None] = lambda *_: None
        self.journal = self.runner = self

    @property
    def records(self) -> tuple[SwitchoverRecord, ...]:
        return self.known

    async def read(self) -> None:
        """Does nothing, because everything is already read."""

    async def run(self, record: SwitchoverRecord) -> SwitchoverRecord:
        for state in (SwitchoverState.FENCING, SwitchoverState.REHEARSED):
            record = replace(record, state=state)
            self.on_step(SwitchoverStep(record), "")
        return record

    def note(self, state: SwitchoverState) -> None:
        assert self.is_running
        self.states.append(state)

    def finish(self, state: SwitchoverState) -> CanaryResult:
        assert self.process is not None
        early = parse_switchover_report(self.process.progress.body())
        assert early is not None
        self.reported = early.state
        return CanaryResult(
            topic="canary",
            group="canary",
            client="simulated",
            timeline=CanaryTimeline(),
            acknowledged_records=5,
            refused_writes=1,
            refused_with="TOPIC_AUTHORIZATION_FAILED",
            read_records=5,
            source_offset=5,
            target_offset=5,
            read_again=0,
            skipped=0,
        )

    def report(self, monkeypatch: pytest.MonkeyPatch, *, fails: Exception | None = None) -> SwitchoverReport:
        """Runs the process of a rehearsal with a canary, which cannot start if it *fails*; returns the last report."""
        settings = SimpleNamespace(pair="pair", source="east", to="west", limits=_record(1).limits)
        job = SwitchoverJob(
            id="pair/1",
            type=SwitchoverType.REHEARSAL,
            settings=cast("Any", settings),
            allows_live_groups=False,
            begin_until_ms=2**60,
            canary=CanaryRequest(topic="canary", group="canary"),
        )
        self.process = process = SwitchoverProcess(job=job, progress=SwitchoverProgress(id=job.id))

        @contextlib.asynccontextmanager
        async def both(*_: object, on_step: Any) -> AsyncIterator[Any]:
            self.on_step = on_step
            yield self

        @contextlib.asynccontextmanager
        async def canary(*_: object) -> AsyncIterator[Any]:
            if fails is not None:
                raise fails
            self.is_running = True
            yield self
            self.is_running = False

        monkeypatch.setattr(switchover_process, "SwitchoverSession", RehearsedPair)
        monkeypatch.setattr(switchover_process, "switchover_session", both)
        monkeypatch.setattr(switchover_process, "started_canary", canary)
        monkeypatch.setattr(switchover_process, "why_not_selected", lambda *_: "")
        asyncio.run(asyncio.wait_for(process.run(), 60))
        report = parse_switchover_report(process.progress.body())
        assert report is not None
        return report


def test_a_rehearsal_runs_its_canary_and_reports_what_that_saw(monkeypatch: pytest.MonkeyPatch):
    pair = RehearsedPair()

    report = pair.report(monkeypatch)

    assert [SwitchoverState.FENCING, SwitchoverState.REHEARSED] == pair.states
    assert not pair.is_running
    assert "Rehearsed" != pair.reported
    assert "Rehearsed" == report.state
    assert report.canary is not None
    assert (True, 5, 1, 0, 0) == (
        report.canary.passed,
        report.canary.records_acknowledged,
        report.canary.writes_refused,
        report.canary.records_read_again,
        report.canary.records_skipped,
    )


def test_a_rehearsal_that_a_new_process_continues_does_not_pass_its_canary(monkeypatch: pytest.MonkeyPatch):
    """What the application saw before is lost with the first process, and the fence is there already."""
    known = _record(1, type=SwitchoverType.REHEARSAL, state=SwitchoverState.FENCING)
    pair = RehearsedPair(known)

    report = pair.report(monkeypatch)

    assert [] == pair.states
    assert "Rehearsed" == report.state
    assert report.canary is not None
    assert (False, CANARY_UNKNOWN) == (report.canary.passed, report.canary.message)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ModuleNotFoundError(name="confluent_kafka"), "this image has no Python package confluent_kafka"),
        (CanaryFailedError(problem="group a does not follow"), "group a does not follow"),
    ],
    ids=["package", "group"],
)
def test_a_rehearsal_whose_canary_cannot_start_is_refused_before_anything_changes(
    monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str
):
    report = RehearsedPair().report(monkeypatch, fails=error)

    assert "Refused" == report.state
    assert report.reason.startswith("spec.canary: ")
    assert sentence in report.reason
    assert () == report.states
