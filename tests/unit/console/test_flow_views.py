"""The view of a flow: its state as in `mirrorflow status`, its problems with advice, and the order of flows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mirrorflow_cli.run_causes import causes
from mirrorflow_cli.run_progress import Progress
from mirrorflow_console.documents import FlowReading, connector_document
from mirrorflow_console.flow_views import (
    FlowView,
    Level,
    SubjectKind,
    flow_view,
    state_text,
    worst_first,
)
from mirrorflow_console.group_views import group_rows
from mirrorflow_console.heat_map import LEGENDS, Measure, heat_map
from mirrorflow_console.lag_forecast import LagSample, Outlook
from mirrorflow_console.partition_views import is_internal, partition_levels, topic_rows
from mirrorflow_core.errors import ConnectionLostError, NotAuthorizedError
from mirrorflow_core.reports import PartitionPhase
from mirrorflow_replicator.http.progress_text import reasons, state_of
from tests.unit.console.flow_readings import (
    STOPPED,
    UNREACHABLE,
    conditions,
    healthy,
    reading,
    set_value,
    table,
)
from tests.unit.http.reports import NOW_S, partition


def progress_of(flow_reading: FlowReading) -> Progress:
    """The progress as `mirrorflow status` has it, with all partitions."""
    assert flow_reading.document is not None
    partitions = flow_reading.partitions
    rows = tuple(map(partitions.row, range(len(partitions))))
    return replace(flow_reading.document.progress, partitions=rows)


def test_a_copying_flow_has_no_problem():
    view = flow_view(reading(healthy(partition(0))))

    assert (view.level, view.state, view.troubles) == (Level.FINE, "Advancing", ())
    assert (view.source, view.target, view.lag) == ("A", "B", "10")


def test_a_stopped_partition_is_a_problem_with_its_runbook():
    view = flow_view(reading(healthy(partition(0), partition(3, **STOPPED))))
    (trouble,) = view.troubles

    assert (view.level, trouble.kind.value, trouble.subject) == (Level.BROKEN, "partition", "orders-3")
    assert trouble.reason == "RecordTooLarge"
    assert trouble.advice is not None
    assert any("max.message.bytes" in step for step in trouble.advice.steps)


def test_a_problem_does_not_repeat_the_name_of_its_object():
    (trouble,) = flow_view(reading(healthy(partition(3, **STOPPED)))).troubles

    assert trouble.text.startswith("orders-3: the target refuses")
    assert (trouble.subject, trouble.sentence[:18]) == ("orders-3", "The target refuses")


def test_falling_behind_begins_at_a_greater_lag_than_it_ends():
    """The lag grows all the time; its age goes up and down around a minute."""
    samples = [LagSample(5.0 * number, 1_000 * (number + 1), 60.0, 9.0, 9.0) for number in range(60)]

    def shown(lag_s: float, before: FlowView | None = None) -> FlowView:
        document = table(healthy(partition(0)))
        document["summary"]["lagSeconds"] = lag_s
        return flow_view(
            FlowReading(key="f", name="f", document=connector_document(document)), samples, before=before
        )

    begun = shown(61.0)

    assert [trouble.reason for trouble in begun.troubles] == ["FallingBehind"]
    assert [trouble.reason for trouble in shown(50.0, begun).troubles] == ["FallingBehind"]
    assert shown(50.0).troubles == ()
    assert shown(40.0, begun).troubles == ()


def test_a_stalled_partition_is_a_warning_with_the_runbook_of_its_reason():
    stalled = partition(
        1, reason="WritesRefused", message="orders-1: refused.", stalled_since_ms=int((NOW_S - 60) * 1000)
    )
    view = flow_view(reading(healthy(partition(0), stalled)))
    (trouble,) = view.troubles

    assert (view.level, trouble.level) == (Level.WARNING, Level.WARNING)
    assert "for 1 min" in trouble.text
    assert trouble.advice is not None
    assert trouble.advice.title == "WritesRefused"


def test_an_unreachable_cluster_is_one_problem():
    view = flow_view(reading(healthy(partition(0), target=UNREACHABLE)))

    assert [(trouble.kind.value, trouble.subject) for trouble in view.troubles] == [("cluster", "target")]
    assert (view.level, view.target_level, view.source_level) == (Level.BROKEN, Level.BROKEN, Level.FINE)


@pytest.mark.parametrize("changes", [{}, {"target": UNREACHABLE}, {"state": "PAUSED"}, {"is_standby": True}])
def test_state_and_problems_are_those_of_mirrorflow_status(changes):
    flow_reading = reading(healthy(partition(0, **STOPPED), **changes))
    progress = progress_of(flow_reading)
    view = flow_view(flow_reading)

    expected = (
        "waiting"
        if progress.is_standby
        else ", ".join((state_of(progress.summary), *reasons(progress.summary)))
    )
    assert state_text(view, progress) == expected
    assert sorted(trouble.text for trouble in view.troubles) == sorted(
        cause.line for cause in causes(progress)
    )


def test_a_condition_that_needs_attention_is_one_problem():
    status = conditions(
        ("Accepted", "False", "SecretMissing", "Secret east-user does not exist."),
        ("Ready", "False", "SecretMissing", "Secret east-user does not exist."),
        ("Degraded", "False", "NoWarnings", ""),
    )
    view = flow_view(FlowReading(key="n~f", name="f", namespace="n", status=status))

    assert [trouble.text for trouble in view.troubles] == ["Secret east-user does not exist."]
    assert (view.level, view.state) == (Level.BROKEN, "SecretMissing")
    assert view.troubles[0].advice is not None


def test_a_paused_flow_is_waiting():
    status = conditions(("Ready", "False", "Paused", "Paused by spec.state."))

    assert flow_view(FlowReading(key="f", name="f", status=status)).level is Level.WAITING


def test_a_resource_without_a_response_shows_the_lag_of_its_status():
    """The status has a range of time, which is no number of records."""
    status = {**conditions(("Ready", "True", "Replicating", "")), "lag": "<10s"}
    view = flow_view(FlowReading(key="f", name="f", status=status))

    assert (view.lag_range, view.lag, view.lag_records, view.is_reported) == ("below 10 s", "?", None, False)


def test_a_flow_without_a_response_is_unknown():
    view = flow_view(FlowReading(key="f", name="f", problem="Its process does not report its progress: no."))

    assert (view.level, view.lag, view.lag_s) == (Level.UNKNOWN, "?", None)
    assert view.troubles[0].text == "Its process does not report its progress: no."


def test_an_unknown_lag_is_not_zero():
    view = flow_view(reading(healthy(partition(0, source_offset=None, source_end_offset=None))))

    assert (view.lag, view.lag_records, view.lag_s) == ("?", None, None)
    assert view.outlook.outlook is Outlook.UNKNOWN


def test_the_worst_flow_is_listed_first():
    readings = [
        reading(healthy(partition(0)), name="fine"),
        FlowReading(key="silent", name="silent"),
        reading(healthy(partition(0, **STOPPED), partition(1)), name="broken"),
    ]

    assert [view.name for view in worst_first(map(flow_view, readings), {})] == ["broken", "silent", "fine"]


def test_the_worst_topic_is_listed_first_and_internal_topics_are_recognised():
    parts = [
        partition(0, "a", source_offset=100),
        partition(0, "b", source_offset=50),
        partition(0, "z", **STOPPED),
        partition(0, "heartbeats"),
        partition(0, "mm2-configs.A.internal"),
    ]
    rows = topic_rows(reading(healthy(*parts)).partitions)

    assert [row.topic for row in rows if not is_internal(row.topic)] == ["z", "b", "a"]
    assert len(rows) == 5


def test_the_heat_map_has_one_cell_per_partition():
    parts = [partition(number) for number in (0, 1)] + [partition(7, "t"), partition(0, "u", **STOPPED)]
    partitions = reading(healthy(*parts)).partitions

    state_map = heat_map(partitions, partition_levels(partitions), Measure.STATE)

    assert state_map.topics == (("u", 1, None), ("orders", 2, None), ("t", 1, (7,)))
    assert state_map.cells == "0444"
    assert state_map.counts["stopped"] == 1
    for measure in Measure:
        cells = heat_map(partitions, partition_levels(partitions), measure).cells
        assert len(cells) == 4
        assert set(map(int, cells)) <= {*range(len(LEGENDS[measure]))}


def cells_of(parts: Sequence[Any], measure: Measure) -> str:
    partitions = reading(healthy(*parts)).partitions
    return heat_map(partitions, partition_levels(partitions), measure).cells


def test_starting_and_waiting_partitions_share_a_value_in_the_heat_map():
    parts = [partition(0, phase=PartitionPhase.STARTING), partition(1, phase=PartitionPhase.WAITING)]

    assert cells_of(parts, Measure.STATE) == "33"


def _offset(group: str, **changes):
    values = {
        "group": group, "topic": "orders", "partition": 0, "targetTopic": "A.orders", "sourceOffset": 9,
        "targetOffset": 9, "translation": "exact", "checkpointAgeSeconds": 3.0, "groupOffset": 9, "written": True,
        "why": None, "readAgainAtLeast": 0, "readAgainAtMost": 0,
    }  # fmt: skip
    return values | changes


def test_groups_are_ordered_by_level_and_then_by_records_to_read_again():
    flow_reading = reading(
        healthy(partition(0)),
        offsets=(
            _offset("small"),
            _offset("large", translation="bound", readAgainAtMost=900),
            _offset(
                "lost",
                translation="unknown",
                readAgainAtLeast=None,
                readAgainAtMost=None,
                written=False,
                why="no sync",
            ),
        ),
    )

    rows = group_rows(flow_reading)

    assert [row.group for row in rows] == ["lost", "large", "small"]
    assert (rows[0].again_most, rows[0].state, rows[0].level) == (None, "no sync", Level.WARNING)
    assert rows[1].again_s == pytest.approx(900 / 9.0)
    assert rows[2].again_s == 0.0


@pytest.mark.parametrize(
    ("source", "target", "members"),
    [
        (True, False, "source"),
        (True, True, "source and target"),
        (False, True, "target"),
        (False, False, "none"),
        (False, None, "none on the source"),
        (None, None, "unknown"),
    ],
)
def test_a_group_shows_on_which_side_it_has_members(source, target, members):
    offset = _offset("billing", hasMembersOnSource=source, hasMembersOnTarget=target)

    (row,) = group_rows(reading(healthy(partition(0)), offsets=(offset,)))

    assert row.members == members


def test_a_connector_of_an_earlier_version_reports_no_members():
    assert group_rows(reading(healthy(partition(0)), offsets=(_offset("billing"),)))[0].members == "unknown"


def test_the_write_mode_is_a_measure_of_the_heat_map():
    parts = [partition(number, write_mode=mode) for number, mode in enumerate(("", "plain", "transaction"))]

    assert cells_of(parts, Measure.MODE) == "012"


def test_a_flow_with_a_stopped_partition_has_no_forecast():
    """The other partitions keep up, but the records of the stopped one are not copied at any rate."""
    samples = [LagSample(at_s, 110, 0.1, 9.0, 9.0) for at_s in range(0, 300, 5)]
    view = flow_view(reading(healthy(partition(0), partition(3, **{**STOPPED, "source_offset": 0}))), samples)

    assert view.outlook.text == "not while partitions are stopped"


def test_a_partition_without_a_lag_age_makes_the_lag_age_a_minimum():
    document = table(healthy(partition(0), partition(1)))
    set_value(document, 1, lagSeconds=None)

    samples = [LagSample(at_s, 20, 0.1, 9.0, 9.0) for at_s in range(0, 300, 5)]
    view = flow_view(FlowReading(key="f", name="f", document=connector_document(document)), samples)

    assert view.is_lag_at_least
    assert view.outlook.outlook is not Outlook.KEEPING_UP
    assert not flow_view(reading(healthy(partition(0)))).is_lag_at_least


def test_a_stopped_partition_missing_in_the_table_is_reported():
    """The table is limited to the partitions with the largest lag. Those with an unknown lag come last."""
    unknown = {**STOPPED, "source_offset": -1}
    document = table(healthy(partition(0), partition(3, **unknown)), limit=1)

    view = flow_view(FlowReading(key="f", name="f", document=connector_document(document)))

    assert (view.level, view.stopped) == (Level.BROKEN, 1)
    assert view.troubles[0].reason == "RecordTooLarge"


@pytest.mark.parametrize(
    ("message", "kind", "subject"),
    [
        ("Secret east-ca is missing; the source needs its key ca.crt. The pod starts once it exists.", SubjectKind.SECRET, "east-ca"),
        ("The pod lacks key password of Secret east.user; add it, and ...", SubjectKind.SECRET, "east.user"),
        ("ConfigMap trust is missing.", SubjectKind.CONFIG_MAP, "trust"),
        (
            "The source connector ends with exit status 1 repeatedly; its last log lines: kubectl logs --previous f-source-7d-x2",
            SubjectKind.POD,
            "f-source-7d-x2",
        ),
        ("The pod lacks Secret east; add it, and ...", SubjectKind.SECRET, "east"),
        ("Only who may get a Secret may name it.", SubjectKind.CONDITION, "Accepted"),
        (
            str(NotAuthorizedError(cluster="west", operation="Write", resource="topic orders")),
            SubjectKind.ACL,
            "Write on topic orders of west",
        ),
        (
            "orders-3: broker 2 of cluster west, which leads orders-3, does not answer; check that broker, ...",
            SubjectKind.BROKER,
            "2 of west",
        ),
        (
            str(ConnectionLostError(cluster="west", address="broker 7", problem="it closed the connection")),
            SubjectKind.BROKER,
            "7 of west",
        ),
    ],
)  # fmt: skip
def test_a_condition_is_about_the_object_that_its_message_names(
    message: str, kind: SubjectKind, subject: str
):
    status = conditions(("Accepted", "False", "SecretMissing", message))
    view = flow_view(FlowReading(key="f", name="f", namespace="n", status=status))

    assert view.worst is not None
    assert (view.worst.kind, view.worst.subject) == (kind, subject)


def test_partitions_that_wait_for_an_acl_or_a_broker_are_a_problem_of_that_object():
    """The sentence has the partition; an operator changes the ACL, or starts the broker."""
    refusal = str(NotAuthorizedError(cluster="west", operation="Write", resource="topic orders"))
    silent = "bills-0: broker 2 of cluster west, which leads bills-0, does not answer; check that broker"
    refused = partition(
        3, phase=PartitionPhase.STOPPED, reason="NotAuthorized", message=f"orders-3: {refusal}"
    )
    waiting = partition(0, "bills", reason="TargetNotAnswering", message=silent, stalled_since_ms=1)

    troubles = flow_view(reading(healthy(refused, waiting))).troubles

    assert [(trouble.level, trouble.kind, trouble.subject) for trouble in troubles] == [
        (Level.BROKEN, SubjectKind.ACL, "Write on topic orders of west"),
        (Level.WARNING, SubjectKind.BROKER, "2 of west"),
    ]
    assert [trouble.text.split(":")[0] for trouble in troubles] == ["orders-3", "bills-0"]


def test_a_cluster_that_refuses_an_acl_is_a_problem_of_the_acl_and_one_that_is_away_of_the_cluster():
    refusal = str(NotAuthorizedError(cluster="east", operation="Describe", resource="topic orders"))
    lost = str(ConnectionLostError(cluster="west", address="broker 7", problem="it closed the connection"))
    status = conditions(
        ("SourceReachable", "False", "NotAuthorized", refusal),
        ("TargetReachable", "False", "Unreachable", lost),
    )

    troubles = flow_view(FlowReading(key="f", name="f", namespace="n", status=status)).troubles

    assert [(trouble.kind, trouble.subject) for trouble in troubles[:2]] == [
        (SubjectKind.CLUSTER, "target"),
        (SubjectKind.ACL, "Describe on topic orders of east"),
    ]
