"""`seed`, `verify`, `archive` and `restore` start Spark jobs and show their progress."""

import argparse
import importlib
import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from mirrorflow_cli import spark_jobs
from mirrorflow_cli.commands import archive, restore, seed, verify
from mirrorflow_cli.errors import FailedError, UsageError
from mirrorflow_cli.spark_jobs import LINE_EVERY_S, JobProgressFormat, LineDisplay
from mirrorflow_core.errors import UnreachableError
from mirrorflow_seed.__main__ import main as seed_main
from mirrorflow_seed.errors import (
    EXIT_PLANNED,
    FileSystemError,
    IncompleteExportError,
    JobFailedError,
    NothingSelectedError,
)
from mirrorflow_seed.job_report import (
    ArchiveReport,
    JobPhase,
    OutcomeCounts,
    RepairReport,
    SeedReport,
    VerifyReport,
)
from mirrorflow_seed.repair.repair_plan import RepairedWindow, plan_repair
from mirrorflow_seed.verify.offset_windows import DifferenceKind, DifferenceRun, WindowOutcome, WindowResult

COMMANDS: dict[str, Any] = {"seed": seed, "verify": verify, "archive": archive, "restore": restore}
FLAGS = ["--from", "a:1", "--to", "b:1"]


class DisplayStub:
    """A display that counts how often it is closed."""

    def __init__(self) -> None:
        self.closed = 0

    def show(self, report: Any) -> None:
        """Shows nothing."""

    def close(self) -> None:
        self.closed += 1


def parse(command: str, *more: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    COMMANDS[command].add_arguments(parser)
    flags = ["--archive", "/x"] if command in {"archive", "restore"} else []
    return parser.parse_args([*FLAGS, *flags, *more])


@pytest.mark.parametrize(
    ("command", "more"), [*((name, ()) for name in COMMANDS), ("verify", ("--archive", "/x"))]
)
def test_each_command_starts_an_existing_job(
    command: str, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs are imported by name at run time, so no other check finds a wrong name."""
    started: list[str] = []

    def run_job(_: argparse.Namespace, job: str, *__: Any, **___: Any) -> int:
        started.append(job)
        return 0

    for module in (seed, verify, archive):
        monkeypatch.setattr(module, "run_job", run_job)
    assert 0 == COMMANDS[command].execute(parse(command, *more))
    assert callable(importlib.import_module(f"mirrorflow_seed.{started[0]}").run)
    assert (started[0] == "archive.archive_verification") is ("--archive" in more)


@pytest.mark.parametrize(
    ("flags", "follows", "interval_ms"),
    [((), None, None), (("--follow",), "true", None), (("--follow", "--interval", "2.5"), "true", "2500")],
)
def test_a_following_archive_gets_its_interval(
    flags: tuple[str, ...], follows: str | None, interval_ms: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []

    def run(_: Any, job: Any, **__: Any) -> int:
        started.append(job)
        return 0

    monkeypatch.setattr("mirrorflow_seed.archive.export_driver.run", run)

    assert 0 == archive.execute(parse("archive", *flags))
    [job] = started
    assert (job.extra.get("archive.follow"), job.extra.get("archive.interval.ms")) == (follows, interval_ms)


def test_a_restore_gets_its_point_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    def run(_: Any, job: Any, **__: Any) -> int:
        started.append(job)
        return 0

    monkeypatch.setattr("mirrorflow_seed.archive.restore_driver.run", run)

    assert 0 == restore.execute(parse("restore", "--until", "2026-11-22T13:00:00Z"))
    assert 0 == restore.execute(parse("restore"))
    assert [job.extra.get("archive.until") for job in started] == ["2026-11-22T13:00:00Z", None]


@pytest.mark.parametrize("command", ["archive", "restore"])
def test_an_archive_has_the_groups_of_the_flow(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """These are the groups of the checkpoint connector. `--no-groups` excludes them, and `--set` takes precedence."""
    started: list[Any] = []

    def run(_: Any, job: Any, **__: Any) -> int:
        started.append(job)
        return 0

    for module in ("archive.export_driver", "archive.restore_driver"):
        monkeypatch.setattr(f"mirrorflow_seed.{module}.run", run)
    for flags in ((), ("--groups", "b.*"), ("--groups", "b.*", "--no-groups"), ("--set", "archive.groups=a")):
        assert 0 == COMMANDS[command].execute(parse(command, *flags))

    assert [job.extra["archive.groups"] for job in started] == ["", "b.*", "", "a"]
    assert "console-consumer-.*" in started[1].extra["archive.groups.exclude"]


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan"])
def test_an_interval_that_is_not_a_duration_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("archive", "--follow", "--interval", text)
    assert "is not a time" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["seed", "archive", "restore"])
@pytest.mark.parametrize(("rate", "bytes_per_second"), [("50Mi", 50 << 20), ("50000000", 50_000_000)])
def test_the_rate_is_passed_to_the_job_in_bytes(
    command: str, rate: str, bytes_per_second: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []

    def run(_: Any, job: Any, **__: Any) -> int:
        started.append(job)
        return 0

    for module in ("seed.seed_driver", "archive.export_driver", "archive.restore_driver"):
        monkeypatch.setattr(f"mirrorflow_seed.{module}.run", run)

    assert 0 == COMMANDS[command].execute(parse(command, "--rate", rate))
    assert [bytes_per_second] == [job.bytes_per_second for job in started]


JOB_MODULES = {
    "seed": "seed.seed_driver",
    "verify": "verify.verify_driver",
    "archive": "archive.export_driver",
    "restore": "archive.restore_driver",
}


@pytest.mark.parametrize("command", JOB_MODULES)
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (JobFailedError("No."), 4),
        (FileSystemError(location="/backup", problem="it is full"), 4),
        (UnreachableError(cluster="east", addresses="east:9092", problem="it is down"), 4),
        (NothingSelectedError("None."), 5),
        (IncompleteExportError("A topic was deleted and created again."), 1),
    ],
)
def test_a_failed_job_and_an_empty_selection_have_their_own_exit_statuses(
    command: str, error: Exception, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status for a difference is a third one.

    All jobs, `mirrorflow` and `mirrorflow-seed` use the same statuses.
    """

    def run(*_: Any, **__: Any) -> int:
        raise error

    monkeypatch.setattr(f"mirrorflow_seed.{JOB_MODULES[command]}.run", run)
    with pytest.raises(FailedError) as failed:
        COMMANDS[command].execute(parse(command))
    assert status == failed.value.status

    job = {"archive": "export"}.get(command, command)
    assert status == seed_main([job, "--worker", "w", "--source", "s"])


@pytest.mark.parametrize("command", JOB_MODULES)
@pytest.mark.parametrize(("ended", "status"), [(0, 0), (1, 1), (3, 130)])
def test_a_command_exits_with_the_status_of_its_job(
    command: str, ended: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"mirrorflow_seed.{JOB_MODULES[command]}.run", lambda *_, **__: ended)
    assert status == COMMANDS[command].execute(parse(command))


def test_an_unexpected_error_does_not_exit_with_the_status_of_a_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(*_: Any, **__: Any) -> int:
        raise AttributeError("no such attribute")

    monkeypatch.setattr("mirrorflow_seed.verify.verify_driver.run", run)
    assert 4 == seed_main(["verify", "--worker", "w", "--source", "s"])


def test_the_display_is_closed_on_an_error() -> None:
    display = DisplayStub()
    with pytest.raises(UsageError):
        spark_jobs.run_job(parse("seed", "--set", "nothing"), "seed.seed_driver", {}, display)
    assert 1 == display.closed


def test_a_line_is_printed_on_a_new_phase_and_periodically() -> None:
    out, now_s = io.StringIO(), [100.0]
    lines = LineDisplay(
        JobProgressFormat(line=lambda report: report.phase.value, done=lambda _: (0, 0)),
        out,
        clock=lambda: now_s[0],
    )
    for phase, at_s in (
        (JobPhase.PREPARING, 100.0),
        (JobPhase.PREPARING, 100.0 + LINE_EVERY_S / 2),
        (JobPhase.PREPARING, 100.0 + LINE_EVERY_S),
        (JobPhase.RUNNING, 100.0 + LINE_EVERY_S + 1),
    ):
        now_s[0] = at_s
        lines.show(SeedReport(run_id="1", phase=phase))
    assert ["Preparing", "Preparing", "Running"] == out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("line_of", "report", "line"),
    [
        (
            seed.line_of,
            SeedReport(
                run_id="1", phase=JobPhase.RUNNING, partitions=4, done=1, records=1_000, gap_records=2
            ),
            "running, 1/4 partitions, 1,000 records, 0 left, 0.0 MB/s, 2 gone from the source",
        ),
        (
            verify.line_of,
            VerifyReport(
                run_id="1",
                phase=JobPhase.RUNNING,
                windows=OutcomeCounts(total=5, equal=2, different=1),
                source_records=9,
            ),
            "running, 3 of 5 windows, 1 different, 9 + 0 records",
        ),
        (
            archive.line_of,
            ArchiveReport(job="export", run_id="1", phase=JobPhase.FAILED, message="No."),
            "failed, 0/0 partitions, 0 records, 0.0 MB, No.",
        ),
    ],
)
def test_a_report_is_one_line_of_text(line_of: Callable[[Any], str], report: Any, line: str) -> None:
    assert line == line_of(report)


def test_json_output_has_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    display = spark_jobs.display_of(JobProgressFormat(line=str, done=lambda _: (0, 0)), as_json=True)
    display.show(SeedReport(run_id="7"))
    display.close()
    assert "7" == json.loads(capsys.readouterr().out)["runId"]


def test_a_repair_shows_its_plan_before_it_writes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --yes the repair only prints the plan and exits with the status of a plan."""
    run = DifferenceRun(DifferenceKind.MISSING, 5, 9)
    window = WindowResult(
        topic="orders",
        partition=0,
        target_topic="east.orders",
        from_offset=0,
        to_offset=100,
        outcome=WindowOutcome.DIFFERENT,
        difference_runs=(run,),
    )
    started: list[tuple[str, dict[str, str]]] = []

    def run_job(_: argparse.Namespace, job: str, properties: dict[str, str], display: Any) -> int:
        started.append((job, properties))
        deleted = RepairedWindow(topic="orders", partition=1, begin=0, end=100, source_begin=90)
        display.show(RepairReport(run_id="7", plan=plan_repair("7", [window], deleted=[deleted])))
        shown = capsys.readouterr().out
        assert "offsets 0 to 100: 4 missing" in shown, "shown while the job runs"
        assert (
            "orders-1, offsets 0 to 100: cannot be repaired any more, the source begins at offset 90 now"
            in shown
        )
        display.show(RepairReport(run_id="7", phase=JobPhase.SUCCEEDED, message="4 records differ."))
        return EXIT_PLANNED

    monkeypatch.setattr(verify, "run_job", run_job)

    assert EXIT_PLANNED == verify.execute(parse("verify", "--repair", "--out", "/r"))
    assert "4 records differ.\nTo copy them, add --yes.\n" == capsys.readouterr().out
    verify.execute(parse("verify", "--repair", "--yes", "--out", "/r"))
    planned = {"output": "/r", "repair": "true"}
    assert [
        ("repair.repair_driver", planned),
        ("repair.repair_driver", {**planned, "repair.confirmed": "true"}),
    ] == started


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--repair"], "name its folder with --out"),
        (["--repair", "--out", "/r", "--archive", "/a"], "leave out --archive"),
        (["--yes"], "add --repair"),
        (["--until", "2026-11-22T13:00:00Z"], "add --archive"),
    ],
)
def test_contradictory_flags_of_verify_are_refused(flags: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        verify.execute(parse("verify", *flags))


def test_partitions_and_points_in_time_are_passed_to_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, str]] = []

    def run_archive_job(_: argparse.Namespace, __: str, more: dict[str, str]) -> int:
        given.append(more)
        return 0

    monkeypatch.setattr(restore, "run_archive_job", run_archive_job)
    restore.execute(parse("restore", "--partition", "a-0:1:2", "--partition", "b-1"))

    assert [{"archive.partitions": "a-0:1:2,b-1"}] == given
