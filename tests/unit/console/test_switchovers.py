"""The cockpit of a switchover: its states, the age of the progress, its commands, and invalid documents."""

import http.client
import re
import time
from dataclasses import replace
from typing import Any

import pytest

from mirrorflow_cli.switchover_report import canary_report
from mirrorflow_console.flow_views import Level, SubjectKind, flow_view
from mirrorflow_console.gate import Visitor
from mirrorflow_console.joined_flows import JoinedFlows
from mirrorflow_console.joined_switchovers import JoinedSwitchovers
from mirrorflow_console.switched_flows import SwitchedFlows
from mirrorflow_console.switchover_views import switchover_view, switchover_views
from mirrorflow_console.switchovers import switchover_reading
from mirrorflow_core.switchover.canary import CanaryResult, CanaryTimeline
from tests.unit.console.flow_readings import FixedFlows, healthy, reading
from tests.unit.console.served_console import ServedConsole, served
from tests.unit.console.switchover_documents import (
    CREATED_S,
    FixedSwitchovers,
    document,
    switchover,
    timestamp,
)
from tests.unit.http.reports import partition

NOTHING: frozenset[str] = frozenset()
DRAINING = (("Checking", 0.5), ("Fencing", 2.0), ("Quiescing", 2.5), ("Sealed", 3.0), ("Draining", 4.0))
MARKUP = '<script>alert("x")</script>'


def get(console: ServedConsole, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=20)
    connection.request("GET", path)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def test_the_timeline_has_the_passed_the_current_and_the_coming_states():
    view = switchover_view(switchover(*DRAINING), CREATED_S + 10)

    assert ["Checking", "Fencing", "Quiescing", "Sealed"] == [
        cell.name for cell in view.cells if cell.place == "passed"
    ]
    assert ["Draining"] == [cell.name for cell in view.cells if cell.place == "present"]
    assert ["Verifying", "GroupsFinal", "ForwardEnded", "Promoting", "Reversing", "Done"] == [
        cell.name for cell in view.cells if cell.place == "to come"
    ]
    assert [1.5, 0.5, 0.5, 1.0] == [cell.took_s for cell in view.cells[:4]]


def test_a_new_attempt_replaces_the_states_of_the_previous_one():
    view = switchover_view(switchover(*DRAINING, ("Fencing", 6.0), ("Quiescing", 7.0)), CREATED_S + 10)

    assert [
        ("Checking", "passed"),
        ("Fencing", "passed"),
        ("Quiescing", "present"),
        ("Sealed", "to come"),
    ] == [(cell.name, cell.place) for cell in view.cells[:4]]


def test_a_rollback_shows_no_coming_states():
    view = switchover_view(switchover(*DRAINING, ("RollingBack", 6.0)), CREATED_S + 10)

    assert "RollingBack" == view.cells[-1].name
    assert view.is_refusing


@pytest.mark.parametrize(
    ("states", "refused_s", "left_s"),
    [
        ((("Checking", 0.5),), None, None),
        (DRAINING, 8.0, 52.0),
        ((*DRAINING, ("Promoting", 5.0)), 8.0, None),
    ],
    ids=["checking", "fenced", "promoted"],
)
def test_writes_count_as_refused_from_the_fence_and_are_limited_until_promotion(
    states: tuple[tuple[str, float], ...], refused_s: float | None, left_s: float | None
):
    view = switchover_view(switchover(*states), CREATED_S + 10)

    assert (refused_s, left_s) == (view.refused_s, view.left_s)
    assert view.is_refusing == (refused_s is not None)


def test_the_duration_of_refused_writes_is_final_once_writes_are_accepted():
    view = switchover_view(
        switchover(*DRAINING, ("Promoting", 5.0), ("Reversing", 5.5), writesRefusedSeconds=3.5),
        CREATED_S + 10,
    )

    assert (3.5, False) == (view.refused_s, view.is_refusing)


def test_the_age_is_that_of_the_document_and_not_of_the_state():
    view = switchover_view(switchover(*DRAINING, written_after_s=9.0), CREATED_S + 10)

    assert (1.0, 6.0) == (view.age_s, view.in_state_s)


def test_a_switchover_without_a_process_is_a_problem_and_shows_the_commands_to_end_it():
    view = switchover_view(switchover(*DRAINING, is_running=False), CREATED_S + 3_600)

    assert (Level.BROKEN, True) == (view.level, view.is_refusing)
    assert "Applications cannot write to east." in view.sentence
    assert ["mirrorflow rollback", "mirrorflow continue"] == [command.command for command in view.commands]


def test_a_promoted_switchover_can_only_be_completed():
    promoted = (*DRAINING, ("Promoting", 5.0))

    assert ["mirrorflow continue"] == [
        command.command
        for command in switchover_view(switchover(*promoted, is_running=False), CREATED_S).commands
    ]
    assert () == switchover_view(switchover(*promoted), CREATED_S).commands


def test_a_running_process_is_stopped_to_roll_back():
    assert ["kill 7"] == [
        command.command for command in switchover_view(switchover(*DRAINING), CREATED_S).commands
    ]


def test_a_process_that_writes_no_progress_is_a_problem():
    assert Level.WARNING is switchover_view(switchover(*DRAINING), CREATED_S + 12).level
    assert Level.BROKEN is switchover_view(switchover(*DRAINING), CREATED_S + 40).level


def test_running_switchovers_are_listed_first_then_the_newest():
    ended = [
        switchover(
            ("Checking", 1.0),
            ("Refused", after),
            switchover=f"ended-{after}",
            created=f"2023-11-1{after}T00:00:00Z",
        )
        for after in (2, 3)
    ]
    views = switchover_views([*ended, switchover(*DRAINING)], CREATED_S + 10)

    assert ["east-west-ab12", "ended-3", "ended-2"] == [view.reading.id for view in views]


def test_an_unfinished_switchover_is_no_problem_once_its_pair_has_a_newer_one():
    """A pair has one switchover at a time, so a different machine has ended the first one."""
    killed = switchover(*DRAINING, is_running=False)
    newer = switchover(
        ("Checking", 100.0), switchover="newer", created=timestamp(99.0), written_after_s=100.0
    )
    views = {view.reading.id: view for view in switchover_views([killed, newer], CREATED_S + 101)}

    assert (Level.UNKNOWN, False, ()) == (
        views[killed.id].level, views[killed.id].is_under_way, views[killed.id].commands,
    )  # fmt: skip
    assert views["newer"].is_under_way


def test_flows_of_a_pair_show_its_switchover_as_a_problem_until_it_has_ended():
    flows = FixedFlows([reading(healthy(partition(0))), reading(healthy(partition(0)), name="other")])
    switchovers = FixedSwitchovers(switchover(*DRAINING))
    source = SwitchedFlows(flows, switchovers, clock=lambda: CREATED_S + 10)

    switched, other = (flow_view(flow) for flow in source.read(NOTHING, NOTHING, is_watched=True))
    assert () == other.troubles
    (trouble,) = switched.troubles
    assert (Level.WARNING, SubjectKind.SWITCHOVER, "east-west-ab12") == (
        switched.level, trouble.kind, trouble.subject,
    )  # fmt: skip
    assert "is in state Draining. Waits for the copy of 7 offsets." in trouble.text

    switchovers.readings = [switchover(*DRAINING, ("Promoting", 5), ("Reversing", 6), ("Done", 7))]
    assert flows.readings == source.read(NOTHING, NOTHING, is_watched=True)


def test_switchovers_of_a_context_are_those_of_its_flows_and_their_commands_name_it():
    own = switchover(*DRAINING)
    in_cluster = replace(
        own,
        namespace="kafka",
        commands={"stop": "kubectl delete pod -l x=y", "rollBack": "mirrorflow switchover"},
    )
    flows = FixedFlows([replace(reading(healthy(partition(0))), namespace="kafka")])
    context = {"prod eu": FixedSwitchovers(in_cluster)}
    joined = JoinedSwitchovers({"": FixedSwitchovers(own), **context})

    local, remote = joined.read()
    switched = SwitchedFlows(JoinedFlows({"prod eu": flows}), joined, clock=lambda: CREATED_S + 10)

    assert own is local
    assert ("prod eu kafka", own.id) == (remote.namespace, remote.id)
    assert {
        "stop": "kubectl --context 'prod eu' delete pod -l x=y",
        "rollBack": "mirrorflow switchover",
    } == remote.commands
    (flow,) = switched.read(NOTHING, NOTHING, is_watched=True)
    assert flow.switchover is not None


@pytest.mark.parametrize(
    "changes",
    [
        {
            "states": 7,
            "checks": "no",
            "groups": [7, {"group": 7}],
            "seal": [],
            "verification": 1,
            "fences": [1],
        },
        {
            "states": [{"state": "Fencing", "entered": "yesterday"}],
            "limitSeconds": float("nan"),
            "commands": {"stop": 7},
        },
        {
            "flows": {"east": 7},
            "writesRefusedSince": "2023-11-14T22:13:20",
            "created": 10**400,
            "notes": {"a": 1},
        },
    ],
    ids=["types", "times", "texts"],
)
def test_a_document_with_invalid_fields_is_shown_without_them(changes: dict[str, Any]):
    with served(FixedFlows(), switchovers=FixedSwitchovers(switchover(*DRAINING, **changes))) as console:
        status, text = get(console, "/switchovers")

    assert 200 == status
    assert "Draining" in text


@pytest.mark.parametrize("name", ["switchover", "pair", "state", "writtenMs"])
def test_a_document_without_its_identity_or_its_time_is_not_shown(name: str):
    given = document(*DRAINING)
    del given[name]

    assert switchover_reading(given, is_running=True) is None


def test_names_with_markup_are_escaped():
    given = switchover(
        *DRAINING, switchover=f"id{MARKUP}", pair=MARKUP, to=MARKUP, waitsFor=MARKUP, notes=[MARKUP], reason=MARKUP,
        groups=[{"group": MARKUP, "outcome": MARKUP, "why": MARKUP}], commands={"stop": MARKUP},
        seal={"sha256": MARKUP, "partitions": 1, "ends": [{"topic": MARKUP, "partition": 0, "end": 5}]},
    )  # fmt: skip
    with served(FixedFlows(), switchovers=FixedSwitchovers(given)) as console:
        pages = [get(console, path)[1] for path in ("/switchovers", "/")]

    assert not any("<script>alert" in page for page in pages)
    assert all("&lt;script&gt;alert" in page for page in pages)


def test_the_page_shows_the_age_the_refused_time_and_the_command_that_rolls_back():
    age_s = time.time() - CREATED_S
    given = switchover(*DRAINING, written_after_s=age_s - 3)
    with served(FixedFlows(), switchovers=FixedSwitchovers(given)) as console:
        _, text = get(console, "/switchovers")

    shown = re.search(r'data-age="([\d.]+)"', text)
    assert shown is not None
    assert 3 <= float(shown[1]) < 13
    for part in (
        "kill 7",
        "on east, still",
        "rolled back in",
        "Waits for the copy of 7 offsets.",
        "east: complete",
    ):
        assert part in text, part


def test_each_switchover_of_the_list_opens_by_its_link():
    others = [switchover(*DRAINING, switchover=name) for name in ("first", "second")]
    with served(FixedFlows(), switchovers=FixedSwitchovers(*others)) as console:
        _, text = get(console, "/switchovers")
        for name in ("first", "second"):
            assert f'href="/switchovers?id={name}"' in text
            status, page = get(console, f"/switchovers?id={name}")
            assert (status, f'</a><span aria-hidden="true">/</span>{name}</p>' in page) == (200, True)


def test_an_unknown_switchover_is_404_and_an_empty_list_is_a_page():
    with served(FixedFlows(), switchovers=FixedSwitchovers()) as console:
        assert 404 == get(console, "/switchovers?id=none")[0]
        assert "No switchover yet" in get(console, "/switchovers")[1]


def test_a_pair_without_a_fence_method_shows_no_complete_fence():
    given = switchover(*DRAINING, fence="None", fences={"east": "complete", "west": "absent"})
    with served(FixedFlows(), switchovers=FixedSwitchovers(given)) as console:
        _, text = get(console, "/switchovers")

    assert "producers are stopped by hand" in text
    assert "east: complete" not in text


def test_a_console_without_a_source_of_switchovers_has_no_link_to_them():
    with served(FixedFlows()) as console:
        assert "/switchovers" not in get(console, "/")[1]
        assert 200 == get(console, "/switchovers")[0]


def test_switchovers_of_other_namespaces_are_not_shown():
    class GateToTheirs:
        async def visitor(self, *_: Any) -> Visitor:
            return Visitor(name="ada", switchover_namespaces=frozenset({"mine"}))

    theirs = switchover(*DRAINING, namespace="theirs", pair="secret")
    with served(FixedFlows(), gate=GateToTheirs(), switchovers=FixedSwitchovers(theirs)) as console:
        assert all("secret" not in get(console, path)[1] for path in ("/", "/switchovers"))
        assert 404 == get(console, f"/switchovers?id={theirs.key}")[0]


REHEARSED = (("Checking", 0.5), ("Fencing", 2.0), ("Draining", 4.0), ("RollingBack", 6.0), ("Rehearsed", 7.0))


def canary(**changes: Any) -> CanaryResult:
    """What the application of a rehearsal saw; no write was accepted for 1.6 s."""
    values: dict[str, Any] = {
        "topic": "canary",
        "group": "canary",
        "client": "confluent-kafka 2.6",
        "timeline": CanaryTimeline(last_acknowledged=10.0, accepted=11.6),
        "acknowledged_records": 1_234,
        "refused_writes": 17,
        "refused_with": "TOPIC_AUTHORIZATION_FAILED",
        "read_records": 1_233,
        "source_offset": 1,
        "target_offset": 1,
        "read_again": 0,
        "skipped": 0,
    }
    return CanaryResult(**(values | changes))


def test_a_rehearsal_shows_what_its_canary_saw():
    """As `mirrorflow switchover --rehearse --canary-topic` reports it."""
    given = switchover(*REHEARSED, type="Rehearsal", **canary_report(canary()))
    with served(FixedFlows(), switchovers=FixedSwitchovers(given)) as console:
        _, text = get(console, "/switchovers")

    shown = dict(re.findall(r"<div><dt>([^<]+)</dt><dd>([^<]+)</dd></div>", text))
    assert shown == {
        "Acknowledged": "1,234 records",
        "Read on east": "1,233 records",
        "Read again": "0 records",
        "Skipped": "0 records",
        "Refused": "17 writes",
        "Not written": "for 1.6 s",
    }
    assert "<b>passed</b>" in text


def test_a_rehearsal_whose_canary_has_failed_needs_attention():
    failed = canary(problem="The group has skipped 3 records.", skipped=3, timeline=CanaryTimeline())
    given = switchover(*REHEARSED, type="Rehearsal", **canary_report(failed))

    shown = switchover_view(given, CREATED_S + 10)

    assert (shown.level, shown.word) == (Level.WARNING, "canary failed")
    assert given.canary is not None
    assert (given.canary.skipped, given.canary.not_written_s) == (3, None)
    assert shown.sentence == given.canary.sentence == "The group has skipped 3 records."
