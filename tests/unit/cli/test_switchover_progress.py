"""The progress files of switchovers on this machine, of commands that run, have ended, or were killed."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_cli.switchover_progress import (
    KEPT_MAX,
    SwitchoverProgressFile,
    local_switchovers,
    refresh_local_switchover,
    show_canary_report,
)
from mirrorflow_core.switchover.observation import FenceState
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.state_machine import SwitchoverStep
from mirrorflow_core.switchover.states import SwitchoverState
from mirrorflow_replicator.switchover.pair_settings import FenceKind, SwitchoverSettings
from mirrorflow_replicator.switchover.session import SwitchoverSession
from mirrorflow_replicator.worker.running_processes import registered
from tests.unit.cli.commands.test_switchover import record

FENCED = ((SwitchoverState.CHECKING, 0), (SwitchoverState.FENCING, 500))
SETTINGS = cast(
    "SwitchoverSettings",
    SimpleNamespace(
        pair="east-west", source="east", to="west", fence=FenceKind.DENY_ACL,
        forward=SimpleNamespace(flow="east-to-west"), back=SimpleNamespace(flow="west-to-east"),
    ),
)  # fmt: skip
SESSION = cast(
    "SwitchoverSession",
    SimpleNamespace(
        fences={"east": SimpleNamespace(seen=FenceState.COMPLETE), "west": SimpleNamespace(seen=None)},
        checks=SimpleNamespace(notes=[], canary=None, known={}, not_checked={}),
        flows=SimpleNamespace(final_groups=lambda: (), verification=None),
    ),
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "mirrorflow"


def progress() -> SwitchoverProgressFile:
    shown = SwitchoverProgressFile(SETTINGS, file="a pair.yaml", secrets=".")
    shown.begin(SESSION)
    return shown


def step(given: SwitchoverRecord, waits_for: str = "") -> SwitchoverStep:
    return SwitchoverStep(given, waits_for=waits_for)


def documents() -> list[dict[str, Any]]:
    return [dict(local.document) for local in local_switchovers()]


def test_a_step_is_shown_with_its_fences_flows_and_commands():
    progress().show(step(record(*FENCED), "Waits."), "")

    (shown,) = documents()
    assert ("Fencing", "Waits.", False) == (shown["state"], shown["waitsFor"], shown["isFinal"])
    assert {"east": "complete", "west": "unknown"} == shown["fences"]
    assert {"east": "east-to-west", "west": "west-to-east"} == shown["flows"]
    assert f"kill {os.getpid()}" == shown["commands"]["stop"]
    assert f"mirrorflow switchover rollback -f '{Path.cwd()}/a pair.yaml'" == shown["commands"]["rollBack"]


def test_a_changed_state_is_shown_at_once_and_a_changed_wait_after_a_second(
    monkeypatch: pytest.MonkeyPatch,
):
    moments = iter([0.0, 0.4, 0.6, 1.7])
    monkeypatch.setattr("mirrorflow_cli.switchover_progress.time.monotonic", lambda: next(moments))
    shown, later = progress(), record(*FENCED, (SwitchoverState.QUIESCING, 900))
    shown.show(step(record(*FENCED), "First."), "")
    shown.show(step(record(*FENCED), "Second."), "")
    assert ["First."] == [document["waitsFor"] for document in documents()]
    shown.show(step(later, "Third."), "")
    assert ["Third."] == [document["waitsFor"] for document in documents()]
    shown.show(step(later, "Fourth."), "")
    assert ["Fourth."] == [document["waitsFor"] for document in documents()]


def test_a_switchover_counts_as_running_while_its_process_is_registered():
    with registered({"switchoverOf": "east-west"}):
        progress().show(step(record(*FENCED)), "")
        assert [True] == [local.is_running for local in local_switchovers()]
    assert [False] == [local.is_running for local in local_switchovers()]


def test_only_the_newest_files_are_kept(state: Path):
    shown = progress()
    for number in range(KEPT_MAX + 5):
        shown.show(step(record((SwitchoverState.CHECKING, number)).revised(id=f"pair-{number}")), f"{number}")

    assert KEPT_MAX == len([*(state / "switchovers").glob("*.json")])
    assert f"pair-{KEPT_MAX + 4}" in {document["switchover"] for document in documents()}


def test_a_name_with_a_path_stays_in_the_folder(state: Path):
    progress().show(step(record(*FENCED).revised(id="../../evil")), "")

    assert ["..%2F..%2Fevil.json"] == [path.name for path in (state / "switchovers").iterdir()]


def test_a_folder_that_cannot_be_written_does_not_end_the_switchover(state: Path):
    state.mkdir()
    (state / "switchovers").write_text("a file")
    progress().show(step(record(*FENCED)), "")

    assert () == local_switchovers()


def test_a_file_with_an_invalid_document_is_ignored(state: Path):
    (state / "switchovers").mkdir(parents=True)
    for name, text in {"a": "{", "b": "[]", "c": json.dumps({"switchover": "x"})}.items():
        (state / "switchovers" / f"{name}.json").write_text(text)

    assert [{"switchover": "x"}] == documents()


def test_a_switchover_continued_on_a_different_machine_shows_the_record_of_the_journal():
    killed = record(*FENCED)
    progress().show(step(killed, "Waits."), "")
    refresh_local_switchover(killed)
    assert ["Fencing"] == [document["state"] for document in documents()]

    lifted = (*FENCED, (SwitchoverState.ROLLING_BACK, 900), (SwitchoverState.LIFTED, 950))
    refresh_local_switchover(record(*lifted).revised())
    (shown,) = documents()
    assert ("Lifted", True, "") == (shown["state"], shown["isFinal"], shown["waitsFor"])


def test_a_rehearsal_has_what_its_canary_saw_after_it_has_ended():
    rehearsed = record(*FENCED, (SwitchoverState.REHEARSED, 900))
    progress().show(step(rehearsed), "")

    show_canary_report(rehearsed.id, {"canaryApplication": {"passed": True}})
    show_canary_report("other", {"canaryApplication": {"passed": True}})

    (shown,) = documents()
    assert ("Rehearsed", {"passed": True}) == (shown["state"], shown["canaryApplication"])


def test_a_switchover_of_a_different_machine_gets_no_file():
    refresh_local_switchover(record(*FENCED))

    assert () == local_switchovers()
