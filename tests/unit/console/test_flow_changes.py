"""Rolls, seeds and other runs of a MirrorFlow are events of its time line, at the times that its status has."""

from typing import Any

import pytest

from mirrorflow_console.documents import FlowReading
from mirrorflow_console.flow_changes import changes, dated_events
from mirrorflow_console.flow_runs import runs_of, seconds_of
from mirrorflow_console.flow_views import FlowView, Level, flow_view
from mirrorflow_console.history import History
from mirrorflow_console.poller import SharedPoller
from tests.unit.console.flow_readings import FixedFlows
from tests.unit.console.test_poller import poll

NOON = "2026-11-01T12:00:00Z"
ONE = "2026-11-01T13:00:00Z"
TWO = "2026-11-01T14:00:00Z"
NOW_S = seconds_of("2026-11-01T15:00:00Z")
assert NOW_S is not None
Rows = list[tuple[str, Level, str, float]]


def view(**status: Any) -> FlowView:
    return flow_view(FlowReading(key="f", name="f", status=status))


def reconciling(reason: str, since: str, message: str = "") -> list[dict[str, str]]:
    """Conditions with the one that says whether workloads are rolled out."""
    status = "False" if reason == "RolledOut" else "True"
    return [
        {
            "type": "Reconciling",
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": since,
        }
    ]


def events(before: FlowView, now: FlowView) -> Rows:
    """The events between two views: kind, level, text and time."""
    assert NOW_S is not None
    return [
        (event.kind, Level(event.level), event.text, event.at_s)
        for event in changes(before, now, NOW_S)
        if event.kind != "state"
    ]


def test_a_roll_of_a_workload_is_an_event_when_it_begins_and_when_it_is_complete():
    pods = "Pods of source are being started or replaced."
    before = view(conditions=reconciling("RolledOut", NOON, "The workloads match the spec."))
    rolling = view(conditions=reconciling("RollingOut", ONE, pods))
    after = view(conditions=reconciling("RolledOut", TWO, "The workloads match the spec."))

    assert events(before, rolling) == [("roll", Level.WAITING, f"Roll: {pods}", seconds_of(ONE))]
    assert events(rolling, after) == [
        ("roll", Level.FINE, "Rolled out: The workloads match the spec.", seconds_of(TWO))
    ]


def test_a_roll_that_began_and_ended_between_two_polls_is_an_event():
    before = view(conditions=reconciling("RolledOut", NOON, "The workloads match the spec."))
    after = view(conditions=reconciling("RolledOut", TWO, "The workloads match the spec."))

    assert [(kind, at_s) for kind, _, _, at_s in events(before, after)] == [("roll", seconds_of(TWO))]
    assert events(after, after) == []


def test_a_roll_that_follows_a_seed_begins_with_the_poll_that_finds_it():
    """The condition stays True, so it keeps the time at which the seed began."""
    seeding = view(conditions=reconciling("Seeding", NOON, "A seed fills the target."))
    rolling = view(conditions=reconciling("RollingOut", NOON, "Pods of source are being started."))

    assert events(seeding, rolling) == [
        ("roll", Level.WAITING, "Roll: Pods of source are being started.", NOW_S)
    ]


@pytest.mark.parametrize(
    "problem", ["PodsRefused", "ImageNotPulled", "SpecChanged", "ReconciliationPaused", "ObjectsRefused"]
)
@pytest.mark.parametrize(
    ("reason", "text"), [("RollingOut", "Roll: Pods."), ("RolledOut", "Rolled out: Pods.")]
)
def test_a_roll_after_a_problem_is_an_event(problem: str, reason: str, text: str):
    """Both conditions may have one time: the status stays, or changes within a second."""
    before = view(conditions=reconciling(problem, NOON))

    assert [rows[2] for rows in events(before, view(conditions=reconciling(reason, NOON, "Pods.")))] == [text]
    assert [rows[2] for rows in events(before, view(conditions=reconciling(reason, ONE, "Pods.")))] == [text]


def test_a_run_that_continues_after_a_problem_is_an_event():
    seed = {"runId": "1", "phase": "Running", "startTime": NOON}
    before = view(conditions=reconciling("ImageNotPulled", ONE), seed=seed)
    after = view(conditions=reconciling("Seeding", ONE, "A seed fills the target."), seed=seed)

    assert [text for _, _, text, _ in events(before, after)] == [
        "Reconciling is True (Seeding): A seed fills the target."
    ]


@pytest.mark.parametrize("reason", ["Seeding", "Restoring"])
def test_a_run_that_follows_a_roll_is_no_roll(reason: str):
    before = view(conditions=reconciling("RolledOut", NOON, "The workloads match the spec."))

    assert events(before, view(conditions=reconciling(reason, ONE, "A run fills the target."))) == []


def test_a_new_image_of_a_workload_is_an_event():
    def running(image: str) -> FlowView:
        return view(connectors={"source": {"image": image}, "checkpoint": {"image": "r:1"}, "schemas": None})

    assert events(running("r:1"), running("r:2")) == [
        ("roll", Level.WAITING, "The source connector has a new image: `r:2`, after `r:1`.", NOW_S)
    ]
    assert events(view(), running("r:1")) == []


def test_a_seed_is_an_event_when_it_begins_loses_data_begins_a_wave_and_ends():
    def seed(phase: str, **fields: Any) -> FlowView:
        return view(seed={"runId": "2", "phase": phase, "startTime": NOON, **fields})

    first = seed("Running", wave=1)
    second = seed("Running", wave=2, partitions={"total": 9, "lost": 1})
    ended = seed(
        "Failed", wave=2, partitions={"total": 9, "lost": 1}, completionTime=TWO, message="Out of disk."
    )

    assert events(view(), first) == [("seed", Level.WAITING, "The seed 2 began.", seconds_of(NOON))]
    assert events(first, second) == [
        ("seed", Level.BROKEN, "The seed 2 has lost data of 1 partition.", NOW_S),
        ("seed", Level.WAITING, "The seed 2 has begun wave 2.", NOW_S),
    ]
    assert events(second, ended) == [
        ("seed", Level.BROKEN, "The seed 2 has failed: Out of disk.", seconds_of(TWO))
    ]
    assert events(ended, ended) == []


def test_a_run_that_is_paused_and_resumed_is_an_event_each_time():
    def seed(phase: str) -> FlowView:
        return view(seed={"runId": "2", "phase": phase, "startTime": NOON})

    assert [text for _, _, text, _ in events(seed("Running"), seed("Paused"))] == ["The seed 2 is paused."]
    assert [text for _, _, text, _ in events(seed("Paused"), seed("Running"))] == ["The seed 2 is running."]


def test_a_run_begins_when_the_status_has_its_beginning():
    """A console that starts again adds the same event, at the same time."""
    pending = view(restore={"runId": "a", "phase": "Pending"})
    running = view(restore={"runId": "a", "phase": "Running", "startTime": NOON})
    assert NOW_S is not None

    assert events(view(), pending) == []
    assert events(pending, running) == [("restore", Level.WAITING, "The restore a began.", seconds_of(NOON))]
    assert [(event.text, event.at_s) for event in dated_events(running, NOW_S)] == [
        ("The restore a began.", seconds_of(NOON))
    ]


def test_a_run_that_is_repeated_with_its_id_begins_again():
    failed = view(seed={"runId": "a", "phase": "Failed", "startTime": NOON, "completionTime": ONE})
    pending = view(seed={"runId": "a", "phase": "Pending"})
    running = view(seed={"runId": "a", "phase": "Running", "startTime": TWO})

    assert events(failed, pending) == []
    assert events(pending, running) == [("seed", Level.WAITING, "The seed a began.", seconds_of(TWO))]
    assert events(failed, running) == [("seed", Level.WAITING, "The seed a began.", seconds_of(TWO))]


def test_a_restart_that_is_complete_does_not_begin_again_when_pods_are_replaced():
    """The operator reports it as running while any pod is replaced."""
    complete = view(restart={"runId": "r1", "phase": "Succeeded"})

    assert events(complete, view(restart={"runId": "r1", "phase": "Running"})) == []


def test_each_scheduled_verification_is_a_run_and_one_with_differences_is_broken():
    def verified(start: str, end: str, different: int) -> FlowView:
        run = {"runId": "", "phase": "Succeeded", "startTime": start, "completionTime": end}
        return view(verify={**run, "windows": {"total": 9, "different": different}, "message": "Compared."})

    rows = events(verified(NOON, ONE, 0), verified(ONE, TWO, 1))

    assert [(kind, level, text) for kind, level, text, _ in rows] == [
        ("verification", Level.WAITING, "The verification began."),
        ("verification", Level.BROKEN, "The verification has found differences: Compared."),
    ]


def test_a_requested_restart_is_an_event():
    before = view(restart={"runId": "r1", "phase": "Succeeded"})
    running = view(restart={"runId": "r2", "phase": "Running"})
    after = view(restart={"runId": "r2", "phase": "Succeeded"})

    assert [text for _, _, text, _ in events(before, running)] == ["The restart r2 began."]
    assert [text for _, _, text, _ in events(running, after)] == ["The restart r2 has succeeded."]


def test_a_console_that_starts_shows_the_last_roll_and_runs_and_repeats_none_after_its_own_restart():
    """A console that was not there has no events of its own, but the status has the times of these."""
    status = {
        "conditions": reconciling("RolledOut", TWO, "The workloads match the spec."),
        "seed": {"runId": "1", "phase": "Succeeded", "startTime": NOON, "completionTime": ONE},
        "restore": {"runId": "", "phase": "Running", "startTime": TWO},
    }
    assert NOW_S is not None
    now_s, history = NOW_S, History(None)
    for _ in range(2):
        flows = FixedFlows([FlowReading(key="f", name="f", namespace="n", status=status)])
        poll(SharedPoller(flows, history, clock=lambda: now_s))

    rows = [(event.kind, event.text, event.at_s) for event in history.events(0)]

    assert sorted(rows) == sorted(
        [
            ("restore", "The restore began.", seconds_of(TWO)),
            ("roll", "Rolled out: The workloads match the spec.", seconds_of(TWO)),
            ("seed", "The seed 1 has succeeded.", seconds_of(ONE)),
            ("seed", "The seed 1 began.", seconds_of(NOON)),
        ]
    )
    assert [at_s for _, _, at_s in rows] == sorted((at_s for _, _, at_s in rows), reverse=True)


def test_a_time_of_the_status_that_is_in_the_future_is_shown_as_now():
    """The clocks of two machines differ."""
    seed = view(seed={"runId": "1", "phase": "Running", "startTime": "2026-11-02T00:00:00Z"})

    assert [event.at_s for event in dated_events(seed, 5.0)] == [5.0]


@pytest.mark.parametrize(
    "status",
    [
        {"seed": []},
        {"seed": {"phase": "Running", "startTime": 7, "partitions": [], "wave": "x", "message": {}}},
        {"verify": {"phase": ["x"], "startTime": "yesterday", "windows": {"different": "many"}}},
        {"connectors": [], "restart": "x"},
        {"connectors": {"source": "x", "checkpoint": {"image": 7}}},
    ],
)
def test_an_unreadable_run_in_a_status_has_no_event(status: dict[str, Any]):
    assert all(run.began_s is None for run in runs_of(status))
    assert events(view(), view(**status)) == []
