"""`mirrorflow switchover` refuses invalid arguments before it connects, and reports the result."""

import asyncio
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from mirrorflow_cli import rehearsal_canary, switchover_rollback, switchover_status
from mirrorflow_cli.__main__ import main
from mirrorflow_cli.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, FailedError
from mirrorflow_cli.switchover_report import StepDisplay, report_of, sentence_of
from mirrorflow_cli.switchover_signals import rolling_back_at_signals
from mirrorflow_core.switchover.observation import FenceState
from mirrorflow_core.switchover.record import StateEntry, SwitchoverRecord
from mirrorflow_core.switchover.state_machine import SwitchoverStep
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType

CREATED_MS = 1_700_000_000_000


def record(*states: tuple[SwitchoverState, int], reason: str = "") -> SwitchoverRecord:
    """Returns a planned switchover that has entered *states*, each so many ms after it was created."""
    return SwitchoverRecord(
        id="east-west-1",
        pair="east-west",
        type=SwitchoverType.PLANNED,
        source="east",
        to="west",
        created_ms=CREATED_MS,
        state=states[-1][0],
        fenced_ms=next(
            (CREATED_MS + after_ms for state, after_ms in states if state is SwitchoverState.FENCING), 0
        ),
        reason=reason,
        history=tuple(StateEntry(state, CREATED_MS + after_ms) for state, after_ms in states),
    )


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (SwitchoverState.CHECKING, "has changed nothing yet: east accepts writes."),
        (
            SwitchoverState.VERIFYING,
            "by an unplanned switchover since, add --accept-two-active",
        ),
        (SwitchoverState.FORWARD_ENDED, "is in state ForwardEnded, so west may have been promoted"),
    ],
    ids=lambda value: value.value if isinstance(value, SwitchoverState) else "",
)
def test_a_rollback_without_its_target_names_the_risk_and_is_refused_if_the_target_may_be_promoted(
    pair: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    state: SwitchoverState,
    sentence: str,
):
    newest = record((state, 500))
    read = SimpleNamespace(
        journal=SimpleNamespace(newest=newest), problems={"west": "Cluster west does not respond."}
    )

    @contextlib.asynccontextmanager
    async def readable_journal(_: object) -> AsyncIterator[object]:
        yield read

    monkeypatch.setattr(switchover_rollback, "readable_journal", readable_journal)
    may_accept = [] if state is SwitchoverState.VERIFYING else ["--accept-two-active"]

    assert EXIT_FAILED == main(["switchover", "rollback", "-f", str(pair), *may_accept])
    assert sentence in capsys.readouterr().err


def test_the_error_for_a_canary_without_its_package_names_what_to_install(
    pair: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.setattr(rehearsal_canary, "why_not_selected", lambda *_: "")
    probe = "{type: Plain, username: {value: app}, password: {secretName: app, key: password}}"
    text = pair.read_text()
    for member in ("east: {flow: east-to-west", "west: {flow: west-to-east"):
        text = text.replace(member, f"{member}, probe: {probe}")
    pair.write_text(text)
    (pair.parent / "app").mkdir()
    (pair.parent / "app" / "password").write_text("secret")
    arguments = ["switchover", "-f", str(pair), "--secrets", str(pair.parent), "--to", "west", "--rehearse"]

    assert EXIT_USAGE == main([*arguments, "--canary-topic", "canary"])

    needed = "--canary-topic: the Python package confluent-kafka is not installed; in MirrorFlow's folder: pip install '.[cli,rehearsal]'."
    assert needed in capsys.readouterr().err


@pytest.mark.parametrize("options", [(), ("--unplanned", "--accept-loss")], ids=["planned", "unplanned"])
def test_an_endpoint_that_only_a_job_can_switch_is_refused(
    pair: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
):
    """A rehearsal and a loss that is only reported switch no endpoint, so they are not refused."""
    endpoint = "  endpoint: {configMap: {name: kafka, key: servers}}\n"
    pair.write_text(
        pair.read_text().replace("  fence: {method: DenyAcl}\n", f"  fence: {{method: DenyAcl}}\n{endpoint}")
    )

    assert EXIT_USAGE == main(["switchover", "-f", str(pair), "--to", "west", *options])
    assert "spec.endpoint.configMap: only a Switchover in Kubernetes switches it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fence", "sentence"),
    [
        (
            "{method: Hook, hook: {job: {image: 'gateway:1'}}}",
            "spec.fence.hook.job: only a Switchover in Kubernetes runs it",
        ),
        (
            "{method: NetworkPolicy, networkPolicy: {brokers: {east: {cluster: east}, west: {cluster: west}}, ports: [9092]}}",
            "spec.fence.networkPolicy: only a Switchover in Kubernetes puts it in force",
        ),
    ],
    ids=["hook-job", "network-policy"],
)
@pytest.mark.parametrize("action", [("--to", "west"), ("rollback",)], ids=["switchover", "rollback"])
def test_a_fence_that_only_a_job_can_set_or_lift_is_refused(
    pair: Path, capsys: pytest.CaptureFixture[str], fence: str, sentence: str, action: tuple[str, ...]
):
    """The command would take the lock from the Job, and try without end."""
    pair.write_text(pair.read_text().replace("  fence: {method: DenyAcl}\n", f"  fence: {fence}\n"))

    assert EXIT_USAGE == main(["switchover", "-f", str(pair), *action])
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--to", "west", "--accept-two-active"], "--accept-two-active is for rollback alone; remove it."),
        (
            ["--to", "west", "--canary-topic", "canary"],
            "--canary-topic is for a rehearsal; add --rehearse, or remove --canary-topic.",
        ),
        (
            ["--to", "west", "--rehearse", "--canary-group", "canary"],
            "--canary-group reads a canary topic; add --canary-topic.",
        ),
        (
            ["--to", "west", "--rehearse", "--canary-topic", "canary"],
            "--canary-topic: flow east-to-west does not copy topic canary; name one that spec.topics of both flows selects.",
        ),
        (["--to", "north"], "--to: north is not a member of east-west; write east or west."),
        ([], "--to: it is missing; write east or west."),
        (
            ["status", "--to", "west"],
            "status takes the pair alone; remove --to.",
        ),
        (
            ["rollback", "--rehearse"],
            "rollback takes the pair alone; remove --rehearse.",
        ),
        (
            ["status", "--unplanned", "--accept-loss"],
            "status takes the pair alone; remove --unplanned and --accept-loss.",
        ),
        (
            ["--to", "west", "--accept-loss"],
            "--accept-loss is for --unplanned alone; add --unplanned, or remove --accept-loss.",
        ),
        (
            ["--to", "west", "--progress", "http://127.0.0.1:1"],
            "--progress is for --unplanned alone; add --unplanned, or remove --progress.",
        ),
        (
            ["--to", "west", "--unplanned", "--rehearse"],
            "--unplanned cannot be rehearsed: without --accept-loss it changes nothing; remove --rehearse.",
        ),
        (
            ["--to", "west", "--unplanned", "--live-groups"],
            "--unplanned waits for no consumers; remove --live-groups.",
        ),
        (
            ["--to", "west", "--restore", "--rehearse"],
            "--restore is a planned switchover; remove --restore or --rehearse.",
        ),
        (
            ["--to", "west", "--restore", "--unplanned"],
            "--restore is a planned switchover; remove --restore or --unplanned.",
        ),
        (["rollback", "--restore"], "rollback takes the pair alone; remove --restore."),
        (["--unplanned"], "--to: it is missing; write east or west."),
    ],
    ids=[
        "rolled-back-switchover",
        "canary-of-a-planned-one",
        "canary-group-without-a-topic",
        "canary-topic-that-is-not-copied",
        "no-member",
        "no-target",
        "status-to",
        "rehearsed-rollback",
        "unplanned-status",
        "accepted-loss-of-a-planned-one",
        "progress-of-a-planned-one",
        "rehearsed-loss",
        "live-groups-of-a-lost-source",
        "rehearsed-restore",
        "unplanned-restore",
        "restored-rollback",
        "unplanned-to-nowhere",
    ],
)
def test_invalid_arguments_are_refused_by_name(
    pair: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
):
    assert EXIT_USAGE == main(["switchover", *arguments, "-f", str(pair)])
    assert f"{sentence}\n" == capsys.readouterr().err


def test_flows_that_rename_topics_are_refused_with_the_file_and_the_field(
    pair: Path, capsys: pytest.CaptureFixture[str]
):
    pair.write_text(pair.read_text().replace("Identity", "Prefix"))

    assert EXIT_USAGE == main(["switchover", "-f", str(pair), "--to", "west"])
    assert capsys.readouterr().err.startswith(
        f"{pair}: spec.topics.naming.policy of east-to-west: it is Prefix"
    )


def test_flows_whose_transforms_rename_topics_are_refused_with_the_field(
    pair: Path, capsys: pytest.CaptureFixture[str]
):
    """Applications would find an empty topic under the old name, and an unplanned switchover would compare that."""
    documents = [*yaml.safe_load_all(pair.read_text())]
    flow = next(document for document in documents if document["metadata"]["name"] == "east-to-west")
    config = {
        "transforms": "moved",
        "transforms.moved.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.moved.regex": "orders",
        "transforms.moved.replacement": "moved-orders",
    }
    flow["spec"]["connectors"] = {"source": {"config": config}}
    pair.write_text(yaml.safe_dump_all(documents))

    assert EXIT_USAGE == main(["switchover", "-f", str(pair), "--to", "west"])
    assert capsys.readouterr().err.startswith(
        f"{pair}: spec.connectors.source.config of east-to-west: its transforms rename topics"
    )


def test_a_switchover_needs_a_file(capsys: pytest.CaptureFixture[str]):
    assert EXIT_USAGE == main(["switchover", "--to", "west"])
    assert "Specify a pair: -f FILE.\n" == capsys.readouterr().err


def test_the_reported_outage_lasts_from_the_fence_to_the_end_of_promotion():
    states = (
        (SwitchoverState.CHECKING, 0),
        (SwitchoverState.FENCING, 500),
        (SwitchoverState.PROMOTING, 2_000),
        (SwitchoverState.REVERSING, 2_250),
        (SwitchoverState.DONE, 9_000),
    )

    report = report_of(record(*states))

    assert 1.75 == report["writesRefusedSeconds"]
    assert [0.5, 1.5, 0.25, 6.75, None] == [state["seconds"] for state in report["states"]]
    assert "west is the active member of east-west. Writes were refused for 1.8 s." == sentence_of(
        record(*states)
    )


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        (
            ((SwitchoverState.CHECKING, 0), (SwitchoverState.REFUSED, 100)),
            "The switchover was refused, and nothing was changed. It lags.",
        ),
        (
            (
                (SwitchoverState.FENCING, 0),
                (SwitchoverState.ROLLING_BACK, 900),
                (SwitchoverState.LIFTED, 1_000),
            ),
            "The switchover was rolled back; east is still the active member of east-west. Writes were refused for 1.0 s. It lags.",
        ),
        (
            ((SwitchoverState.FENCING, 0), (SwitchoverState.DRAINING, 900)),
            "Switchover east-west-1 of east-west from east to west is in state Draining. It lags.",
        ),
    ],
    ids=["refused", "rolled-back", "under-way"],
)
def test_the_result_names_the_active_member_and_the_reason(
    states: tuple[tuple[SwitchoverState, int], ...], sentence: str
):
    assert sentence == sentence_of(record(*states, reason="It lags."))


@pytest.mark.parametrize(
    ("kind", "state", "is_rolled_back", "sentence"),
    [
        (
            SwitchoverType.PLANNED,
            SwitchoverState.FORWARD_ENDED,
            True,
            "Rolls back; once more ends at once, and leaves writes refused.",
        ),
        (
            SwitchoverType.UNPLANNED,
            SwitchoverState.FORWARD_ENDED,
            True,
            "Rolls back, which waits for east if that was fenced; once more ends at once, and leaves writes refused.",
        ),
        (
            SwitchoverType.PLANNED,
            SwitchoverState.PROMOTING,
            False,
            "west is promoted, so the switchover can only be completed, and continues; once more ends at once.",
        ),
        (
            SwitchoverType.UNPLANNED,
            SwitchoverState.PROMOTING,
            False,
            "west is promoted, so the switchover can only be completed, and continues; once more ends at once.",
        ),
        (
            SwitchoverType.PLANNED,
            SwitchoverState.REVERSING,
            False,
            "west is promoted, so the switchover can only be completed, and continues; once more ends at once.",
        ),
    ],
    ids=lambda value: value.value if isinstance(value, SwitchoverState | SwitchoverType) else "",
)
def test_the_first_signal_rolls_back_or_continues_and_the_second_ends_the_command(
    capsys: pytest.CaptureFixture[str],
    kind: SwitchoverType,
    state: SwitchoverState,
    *,
    is_rolled_back: bool,
    sentence: str,
):
    requested: list[bool] = []
    display, printed = StepDisplay(), list[str]()
    display.record = replace(record((state, 0)), type=kind)

    async def be_signalled() -> None:
        with rolling_back_at_signals(lambda: requested.append(True), display) as signals:
            for number in (1, 2):
                os.kill(os.getpid(), signal.SIGTERM)
                while len(signals) < number:  # noqa: ASYNC110 - the handler has no event to wait for
                    await asyncio.sleep(0)
                printed.append(capsys.readouterr().err)

    with pytest.raises(
        FailedError, match=f"It is in state {state.value}. The same command continues it"
    ) as ended:
        asyncio.run(be_signalled())
    assert 128 + signal.SIGTERM == ended.value.status
    assert [f"{sentence}\n"] == printed[:1]
    assert is_rolled_back == bool(requested)


def _closed_pipe(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the stream *name* of sys a pipe that no process reads, as Ctrl-C leaves it, which ends `tee`, too."""
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, name, os.fdopen(writer, "w", buffering=1, closefd=False))


def test_ctrl_c_rolls_back_although_no_process_reads_what_is_printed(monkeypatch: pytest.MonkeyPatch):
    """The pipe of `mirrorflow switchover | tee log` is closed by the same Ctrl-C, while writes are refused."""
    requested: list[bool] = []
    display, errors = StepDisplay(), list[Any]()
    _closed_pipe("stderr", monkeypatch)

    async def be_signalled() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        with rolling_back_at_signals(lambda: requested.append(True), display) as signals:
            os.kill(os.getpid(), signal.SIGINT)
            while not signals:  # noqa: ASYNC110 - the handler has no event to wait for
                await asyncio.sleep(0)
            display.show(SwitchoverStep(record((SwitchoverState.ROLLING_BACK, 0))), "")

    asyncio.run(be_signalled())

    assert [True] == requested
    assert [] == errors


@pytest.mark.parametrize("is_ignored", [False, True], ids=["terminal", "nohup"])
def test_a_terminal_that_is_closed_rolls_back_once_and_nohup_prevents_that(*, is_ignored: bool):
    """The kernel and the shell may both send SIGHUP. It must not end the process while writes are refused."""
    requested: list[bool] = []
    uncaught: list[int] = []

    async def be_signalled() -> list[int]:
        with rolling_back_at_signals(lambda: requested.append(True), StepDisplay()) as signals:
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGHUP)
                await asyncio.sleep(0.01)
            return list(signals)

    before = signal.signal(
        signal.SIGHUP, signal.SIG_IGN if is_ignored else lambda number, _: uncaught.append(number)
    )
    try:
        signals = asyncio.run(be_signalled())
    finally:
        signal.signal(signal.SIGHUP, before)

    assert [] == uncaught
    assert ([] if is_ignored else [signal.SIGHUP]) == signals
    assert ([] if is_ignored else [True]) == requested


@pytest.mark.parametrize(
    ("sessions", "end"),
    [
        ("shown_session", SwitchoverState.LIFTED),
        ("shown_session", SwitchoverState.REHEARSED),
        ("unplanned_session", SwitchoverState.LIFTED),
        ("source_rollback", SwitchoverState.ROLLING_BACK),
    ],
    ids=lambda value: value if isinstance(value, str) else value.value,
)
def test_a_rollback_continues_although_its_terminal_is_closed(
    pair: Path,
    sessions: str,
    end: SwitchoverState,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """Without the handler, the process would end while writes are refused."""
    unfinished = record((SwitchoverState.FENCING, 0))
    if sessions == "unplanned_session":
        unfinished = replace(unfinished, type=SwitchoverType.UNPLANNED)
    problems = {"west": "west does not respond."} if sessions == "source_rollback" else {}

    @contextlib.asynccontextmanager
    async def readable_journal(_: object) -> AsyncIterator[object]:
        yield SimpleNamespace(journal=SimpleNamespace(newest=unfinished), problems=problems)

    async def run(present: SwitchoverRecord) -> SwitchoverRecord:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.01)
        return replace(present, state=end)

    runner = SimpleNamespace(run=run)
    session = SimpleNamespace(
        runner=runner,
        journal=SimpleNamespace(newest=None),
        observer=SimpleNamespace(request_rollback=lambda: None),
    )

    @contextlib.asynccontextmanager
    async def opened(*_: object, **__: object) -> AsyncIterator[object]:
        yield (unfinished, runner) if sessions == "source_rollback" else session

    monkeypatch.setattr(switchover_rollback, "readable_journal", readable_journal)
    monkeypatch.setattr(switchover_rollback, sessions, opened)
    monkeypatch.setattr(switchover_rollback, "session_report", lambda last, _: report_of(last))
    uncaught: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: uncaught.append(number))
    try:
        status = main(["switchover", "rollback", "-f", str(pair), "--accept-two-active"])
    finally:
        signal.signal(signal.SIGHUP, before)

    assert ([], EXIT_DONE) == (uncaught, status)
    assert "Rolls back" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "stream", "status"),
    [
        ("completion", "stdout", EXIT_DONE),
        ("completion", "stderr", EXIT_FAILED),
        ("switchover", "stdout", EXIT_FAILED),
        ("switchover", "stderr", EXIT_FAILED),
    ],
)
def test_only_a_closed_stdout_of_another_command_counts_as_done(
    monkeypatch: pytest.MonkeyPatch, command: str, stream: str, status: int
):
    """`head` closes stdout when it has enough. A switchover that ends by such an error has not ended: writes may be refused."""
    _closed_pipe(stream, monkeypatch)

    def execute(_: object) -> int:
        print("a line", file=getattr(sys, stream), flush=True)
        return EXIT_DONE

    monkeypatch.setattr(importlib.import_module(f"mirrorflow_cli.commands.{command}"), "execute", execute)

    assert status == main([command, *(["bash"] if command == "completion" else [])])


def test_a_result_that_no_process_reads_changes_neither_status_nor_report(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A switchover that was completed is no failure because `tee` has ended."""
    read = SimpleNamespace(journal=SimpleNamespace(newest=None, active="east"), problems={}, clusters={})

    async def fence_state(*_: object) -> FenceState:
        return FenceState.ABSENT

    @contextlib.asynccontextmanager
    async def readable_journal(_: object) -> AsyncIterator[object]:
        yield read

    async def predicted(*_: object) -> str:
        return "It is unknown."

    read.fence_state = fence_state
    monkeypatch.setattr(switchover_status, "readable_journal", readable_journal)
    monkeypatch.setattr(switchover_status, "_predicted", predicted)
    _closed_pipe("stdout", monkeypatch)

    report = tmp_path / "report.json"
    assert EXIT_DONE == main(["switchover", "status", "-f", str(pair), "--report", str(report)])
    assert report.exists()
