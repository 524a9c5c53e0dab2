"""The summary is bounded and reports changes; lag seconds are a correct upper bound."""

import json
from dataclasses import replace

import pytest

from mirrorflow_core.reports import GroupsReport, Guarantee, PartitionPhase, SideReport
from mirrorflow_replicator.http import progress
from mirrorflow_replicator.http.partition_rates import Samples
from mirrorflow_replicator.http.progress import has_started
from mirrorflow_replicator.http.worker_view import local_view
from tests.unit.http.reports import NOW_S, connector, content, moved, partition, task, view

LOST = partition(1, phase=PartitionPhase.STOPPED, reason="SourceDataLost", message="gone")


def summary(report, **changes):
    response = progress.answer({}, view(report, **changes))
    assert response.status == 200
    assert len(content(response)) <= progress.SUMMARY_MAX_BYTES
    return json.loads(content(response))


def test_summary_sums_up():
    """Counts are sums, lag is the sum of offsets and the worst age, rates come from samples."""
    report = connector(
        task(partition(0), partition(1, guarantee=Guarantee.AT_LEAST_ONCE, reached_start_end=True))
    )
    found = summary(report, samples=moved(report))

    assert found["partitions"] == {
        "total": 2,
        "copying": 2,
        "starting": 0,
        "waiting": 0,
        "stopped": 0,
        "behindStart": 1,
        "lagUnknown": 0,
        "stalled": 0,
    }
    assert tuple(
        found[key] for key in ("lagRecords", "lagSeconds", "recordsPerSecond", "bytesPerSecond")
    ) == (20, 4.0, 18.0, 180.0)
    assert (
        found["records"],
        found["bytes"],
        found["caughtUp"],
        found["replicating"],
    ) == (180, 1800, False, "Advancing")
    assert found["guarantee"] == {"exactly-once": 1, "at-least-once": 1}


def test_the_summary_stays_small():
    """Thousands of partitions with long names and sentences and many reasons still fit."""
    parts = [
        partition(
            n, "secret-topic", phase=PartitionPhase.STOPPED, reason=f"\x01{n}" * 90, message="secret-topic"
        )
        for n in range(2000)
    ]
    hostile = "\x01\U0001f600a" * 3000
    side = SideReport(reason=hostile, since_s=-1e300, cluster_id=hostile)
    report = connector(
        task(*parts, trace="secret-topic"),
        name="\x01" * 5000,
        flow="\U0001f600" * 5000,
        source=side,
        target=side,
        missing=(hostile, hostile),
        groups=GroupsReport(selected=10**18, passed_s=0.0, interval_s=1e18),
    )

    assert summary(report)["partitions"]["stopped"] == 2000


CAUGHT_UP = partition(source_offset=100, reached_start_end=True)
LOST_TRACK = partition(1, phase=PartitionPhase.STOPPED, source_offset=-1, source_end_offset=-1)
REFUSED = (
    "Target topic A.secret-topic cannot be created: no.",
    "Target topic A.other cannot be created: no.",
)


@pytest.mark.parametrize(
    ("parts", "changes", "word"),
    [
        ([CAUGHT_UP], {}, "Idle"),
        ([partition()], {}, "Stuck"),
        ([partition()], {"started_at_s": NOW_S - 5}, "Waiting"),
        ([partition(phase=PartitionPhase.WAITING)], {}, "Waiting"),
        (
            [partition(phase=PartitionPhase.STARTING, source_offset=-1)],
            {"started_at_s": NOW_S - 5},
            "Waiting",
        ),
        ([partition(phase=PartitionPhase.STARTING, source_offset=-1)], {}, "Stuck"),
        ([CAUGHT_UP, LOST], {}, "SourceDataLost"),
        ([CAUGHT_UP], {"state": "FAILED"}, "Stuck"),
        ([], {}, "Idle"),
        ([partition(source_end_offset=-1)], {}, "Waiting"),
        ([CAUGHT_UP, partition(1, source_end_offset=-1)], {"started_at_s": NOW_S - 1}, "Waiting"),
        ([LOST_TRACK], {}, "Stuck"),
        ([CAUGHT_UP, LOST_TRACK], {}, "Idle"),
        ([], {"state": "UNASSIGNED", "started_at_s": NOW_S - 5}, "Waiting"),
        ([], {"state": "UNASSIGNED"}, "Stuck"),
        ([], {"uncopied": REFUSED}, "Stuck"),
        ([], {"uncopied": REFUSED, "started_at_s": NOW_S - 5}, "Waiting"),
        ([CAUGHT_UP], {"uncopied": REFUSED}, "Stuck"),
        ([CAUGHT_UP], {"nothing_selected": "No topic."}, "Idle"),
        ([CAUGHT_UP, LOST], {"uncopied": REFUSED}, "SourceDataLost"),
    ],
)
def test_replicating_is_what_was_seen(parts, changes, word):
    """One word, from lag, phases and what moved; a copier that copies nothing while there is data is stuck."""
    assert word == summary(connector(task(*parts), **changes))["replicating"]


def test_a_stalled_partition_is_counted_with_its_reason_beside_those_that_move():
    """And its row says for how long it has stood still."""
    since_ms = int(1000 * NOW_S) - 45_000
    stalled = partition(1, reason="WritesRefused", message="it is refused.", stalled_since_ms=since_ms)
    report = connector(task(partition(0), stalled))

    found = summary(report)
    rows = json.loads(content(progress.partitions({}, view(report))))["partitions"]

    assert (found["partitions"]["stalled"], found["partitions"]["copying"]) == (1, 2)
    assert found["reasons"] == [
        {"reason": "WritesRefused", "count": 1, "example": f"{stalled.topic}-1: it is refused."}
    ]
    assert [row["stalledSeconds"] for row in rows] == [None, 45.0]


def test_heartbeats_are_no_progress():
    """They move while every other partition stands still, and while there is nothing to copy."""
    beats = replace(partition(), topic="west.heartbeats")
    behind = connector(task(beats, partition(1)))
    idle = connector(task(beats, replace(CAUGHT_UP, partition=1)))

    words = [summary(one, samples=moved(connector(task(beats))))["replicating"] for one in (behind, idle)]

    assert ["Stuck", "Idle"] == words


def test_topics_that_are_named_like_heartbeats_are_progress_where_there_are_no_others():
    """`orders.heartbeats` may be the user's own topic: a flow of nothing else is not idle while it copies, nor while it cannot."""
    only = connector(task(partition(topic="orders.heartbeats"), partition(topic="heartbeats")))

    words = [summary(only, samples=samples)["replicating"] for samples in (moved(only), Samples())]

    assert ["Advancing", "Stuck"] == words


def test_the_flows_own_heartbeats_are_never_progress():
    """A flow that copies `heartbeats` and nothing else has nothing to copy."""
    only = connector(task(partition(topic="heartbeats")))

    assert "Idle" == summary(only, samples=moved(only))["replicating"]


@pytest.mark.parametrize(
    ("properties", "topic"),
    [
        ({}, "west.heartbeats"),
        ({"replication.policy.separator": "_"}, "west_heartbeats"),
        ({"replication.policy.class": "IdentityReplicationPolicy"}, "west.heartbeats"),
    ],
)
def test_heartbeats_are_what_the_flows_policy_calls_so(properties, topic):
    report = connector(task(partition(topic=topic), partition(1)), properties=properties)
    beats = connector(task(partition(topic=topic)), properties=properties)

    assert "Stuck" == summary(report, samples=moved(beats))["replicating"]


def test_a_topic_that_only_ends_like_heartbeats_is_progress():
    """The separator of the flow's policy is another one."""
    report = connector(
        task(partition(topic="west.heartbeats"), partition(1)),
        properties={"replication.policy.separator": "_"},
    )
    moving = connector(task(partition(topic="west.heartbeats")))

    assert "Advancing" == summary(report, samples=moved(moving))["replicating"]


def test_the_first_warnings_are_told():
    """Cut, and counted in full: `/connectors/.../status` has all."""
    warnings = tuple(f"Topic {n} has no ACLs." + " x" * 200 for n in range(5))
    found = summary(connector(task(CAUGHT_UP), warnings=warnings))

    assert found["warnings"] == 5
    assert [text[:8] for text in found["firstWarnings"]] == ["Topic 0 ", "Topic 1 ", "Topic 2 "]
    assert max(map(len, found["firstWarnings"])) <= progress.WARNING_MAX


def test_what_copies_all_it_may_is_advancing_though_a_topic_is_refused():
    """The word says what moves; the reasons say what does not."""
    report = connector(task(partition()), uncopied=REFUSED)

    assert "Advancing" == summary(report, samples=moved(report))["replicating"]


def test_topics_without_a_copy_are_told_as_soon_as_all_partitions_were_heard_of():
    """Topics with a copy may not have begun yet; a known result need not wait half a minute."""
    report = connector(task(), uncopied=REFUSED, started_at_s=NOW_S - 5)

    assert ["Waiting", "Stuck"] == [summary(report, ready=ready)["replicating"] for ready in (False, True)]


def test_nothing_to_copy_is_reported_as_soon_as_it_is_known():
    """A `topics` that matches nothing does not look like a long start."""
    report = connector(task(), started_at_s=NOW_S - 5)

    assert ["Waiting", "Idle"] == [summary(report, ready=ready)["replicating"] for ready in (False, True)]


def test_topics_without_a_copy_are_counted_and_never_caught_up():
    """By a reason with an example; a partition that has caught up does not make up for them."""
    report = connector(task(CAUGHT_UP))
    ready = summary(report, ready=True)
    refused = summary(replace(report, uncopied=REFUSED), ready=True)

    assert [True, False] == [ready["caughtUp"], refused["caughtUp"]]
    told = {"reason": "TopicNotCopied", "count": 2, "example": REFUSED[0]}
    assert [[], [told]] == [ready["reasons"], refused["reasons"]]


@pytest.mark.parametrize("stopped", [False, True])
def test_lag_is_unknown_while_the_source_is_away(stopped: bool):  # noqa: FBT001
    """What was seen of its end last is not what it is now: nothing says that there is nothing to copy."""
    parts = (
        [CAUGHT_UP, partition(1, phase=PartitionPhase.STOPPED, source_offset=100)] if stopped else [CAUGHT_UP]
    )
    away = SideReport(reason="Unreachable", since_s=NOW_S - 60)
    found = summary(connector(task(*parts), source=away), ready=True)

    assert found["partitions"]["lagUnknown"] == len(parts)
    assert found["replicating"] == "Waiting"


def test_no_lag_is_known_to_be_none_while_the_target_is_away():
    """Nothing is fetched then; a lag that was seen before has not become less."""
    away = SideReport(reason="Unreachable", since_s=NOW_S - 60)
    idle = summary(connector(task(CAUGHT_UP), target=away), ready=True)
    behind = summary(connector(task(partition()), target=away), ready=True)

    assert (1, "Waiting") == (idle["partitions"]["lagUnknown"], idle["replicating"])
    assert (0, 10) == (behind["partitions"]["lagUnknown"], behind["lagRecords"])


def test_warnings_about_settings_are_in_the_summary():
    """Each once, before those of the connector's work; a worker has them from its files."""
    typo = "topics.includ: unknown, it has no effect."
    shown = view(connector(warnings=("One is left out.",)), warnings=(typo, typo))
    found = json.loads(content(progress.answer({}, shown)))

    assert (2, [typo, "One is left out."]) == (found["warnings"], found["firstWarnings"])


def test_a_connector_without_partitions_is_not_idle_while_a_cluster_is_away():
    """A checkpoint connector has none; a source connector has none before it has reached both."""
    away = SideReport(reason="Unreachable", since_s=NOW_S - 60)

    assert "Waiting" == summary(connector(source=away), ready=True)["replicating"]
    assert "Waiting" == summary(connector(target=away), ready=True)["replicating"]


def test_no_lag_is_known_to_be_none_while_a_process_is_silent():
    silent = partition(
        phase=PartitionPhase.STARTING, source_offset=110, reason="TaskSilent", stalled_since_ms=1000
    )

    found = summary(connector(task(silent)), ready=True, monotonic_s=NOW_S + 60)

    assert (1, "Stuck") == (found["partitions"]["lagUnknown"], found["replicating"])


def test_a_flow_without_topics_is_never_caught_up():
    """Heartbeats, which are copied all the same, do not make up for them."""
    report = connector(task(CAUGHT_UP), nothing_selected="No topic of east is selected.")
    found = summary(report, ready=True)
    shown = json.loads(content(progress.partitions({}, view(report))))

    assert not found["caughtUp"]
    told = {"reason": "NothingMatches", "count": 1, "example": "No topic of east is selected."}
    assert found["reasons"] == [told]
    assert shown["nothingSelected"] == "No topic of east is selected."


def test_partitions_name_the_topics_that_are_not_copied():
    """With their sentences, the first of them; the number is of all."""
    many = tuple(f"Target topic A.t{number} cannot be created: no." for number in range(150))
    shown = json.loads(content(progress.partitions({}, view(connector(task(), uncopied=many)))))

    assert (150, list(many[:100])) == (shown["uncopiedTotal"], shown["uncopied"])


def test_throttled_needs_a_recent_wait():
    """A quota that made us wait a minute ago says nothing about now."""
    report = connector(task(partition(), throttle_ms=50))
    samples = moved(report)

    assert summary(report, samples=samples)["replicating"] == "Throttled"
    assert summary(report, samples=samples, monotonic_s=NOW_S + 60)["replicating"] == "Stuck"


@pytest.mark.parametrize("step_s", [-3600.0, 0.0, 3600.0])
def test_only_ages_of_records_follow_a_wall_clock_that_steps(step_s: float):
    """Rates, the word, and for how long something has been so are by the monotonic clock."""
    up_s = 500.0
    stalled = partition(1, records=0, bytes=0, reason="WritesRefused", stalled_since_ms=470_000)
    report = connector(
        task(partition(), stalled),
        started_at_s=up_s - 100,
        source=SideReport(reason="", since_s=up_s - 50, cluster_id="east"),
        groups=GroupsReport(passed_s=up_s - 30, interval_s=60.0),
    )
    samples = Samples()
    samples.observe(report.name, task(partition(records=0, bytes=0), stalled), up_s - 10)
    samples.observe(report.name, report.tasks[0], up_s)
    now = {"samples": samples, "monotonic_s": up_s, "now_s": NOW_S + step_s}

    found = summary(report, **now)
    rows = json.loads(content(progress.partitions({}, view(report, **now))))["partitions"]

    assert (found["uptimeSeconds"], found["recordsPerSecond"], found["replicating"]) == (100, 9, "Advancing")
    assert (found["source"]["sinceSeconds"], found["checkpoints"]["ageSeconds"]) == (50, 30)
    assert [row["stalledSeconds"] for row in rows] == [None, 30]
    assert found["lagSeconds"] == max(0, 4 + step_s)


def test_lag_age_of_a_quiet_topic_counts_from_its_awakening():
    """A record that comes after days without any is not days late."""
    samples, day_s = Samples(), 86_400.0
    quiet = partition(source_offset=100, record_timestamp_ms=1000)
    samples.observe("c", task(quiet), NOW_S - 10 * day_s)
    awake = replace(quiet, source_end_offset=101)
    samples.observe("c", task(awake), NOW_S - 2)

    assert samples.lag_s("c", awake, NOW_S, NOW_S) == 2.0
    assert samples.lag_s("c", quiet, NOW_S, NOW_S) == 0.0


def test_lag_age_behind_an_open_transaction_counts_from_the_last_progress():
    """What it hides counts as lag only once it has stalled the partition, so the lag is older than its first report."""
    samples = Samples()
    copied = partition(source_offset=100, source_end_offset=100, record_timestamp_ms=1000)
    samples.observe("c", task(copied), NOW_S - 500)
    since_ms = round(1000 * (NOW_S - 40))
    held = replace(copied, source_end_offset=140, reason="OpenTransaction", stalled_since_ms=since_ms)
    samples.observe("c", task(held), NOW_S - 10)

    assert samples.lag_s("c", held, NOW_S, NOW_S) == 40.0


def test_a_partition_behind_an_open_transaction_is_not_idle():
    held = partition(
        source_end_offset=140, reason="OpenTransaction", stalled_since_ms=round(1000 * (NOW_S - 40))
    )
    found = summary(connector(task(held), started_at_s=NOW_S - 600))

    assert (found["replicating"], found["lagRecords"]) == ("Stuck", 140 - held.source_offset)


def test_lag_age_of_a_backlog_is_the_age_of_what_was_copied_last():
    """While a backlog is copied the newest delivered timestamp bounds it; without timestamps, the rate; else nothing."""
    assert Samples().lag_s("c", partition(), NOW_S, NOW_S) == 4.0
    assert Samples().lag_s("c", partition(record_timestamp_ms=-1), NOW_S, NOW_S) == -1.0
    unknown = partition(record_timestamp_ms=-1)
    report = connector(task(unknown))
    assert pytest.approx(moved(report).lag_s(report.name, unknown, NOW_S, NOW_S)) == 10 / 9


def test_rates_forget_and_survive_a_restart():
    """Rates fall to zero after the window, and a task that counts anew makes no negative rate."""
    report = connector(task(partition()))
    samples = moved(report)

    assert samples.rate(report.name, "orders", 0, NOW_S).records == 9.0
    assert samples.rate(report.name, "orders", 0, NOW_S + 61).records == 0.0
    samples.observe(report.name, task(partition(records=5, bytes=50)), NOW_S + 1)
    assert samples.rate(report.name, "orders", 0, NOW_S + 2).records == 5.0
    samples.retain(report.name, [])
    assert samples.rate(report.name, "orders", 0, NOW_S + 2).records == 0.0


def test_partitions_come_with_the_greatest_lag_first():
    """The table has the worst first, as many as asked for, and says how many there are."""
    report = connector(task(*(partition(n, source_end_offset=100 + n) for n in range(5))))
    found = json.loads(content(progress.partitions({"limit": "2"}, view(report))))

    assert (found["total"], [row["partition"] for row in found["partitions"]]) == (5, [4, 3])
    assert progress.partitions({"limit": "-1"}, view(report)).status == 400
    assert json.loads(content(progress.partitions({"connector": "none"}, view(report))))["partitions"] == []


def test_unknown_connector_has_no_summary():
    """Asking for a connector of another process is 404."""
    assert progress.answer({"connector": "none"}, view(connector())).status == 404


@pytest.mark.parametrize(
    ("report", "started"),
    [
        (connector(task(partition())), True),
        (connector(task(LOST)), True),
        (connector(task(partition(phase=PartitionPhase.STARTING))), False),
        (connector(task(partition(), state="FAILED")), False),
        (connector(state="UNASSIGNED"), False),
        (connector(task(), task_properties=({}, {})), False),
    ],
)
def test_started_means_that_every_partition_was_asked(report, started):
    """Readiness waits for tasks and for each partition's first answer, not for its success."""
    assert started == has_started((report,))


def test_one_connectors_trouble_does_not_hold_back_anothers_word():
    """A process of several: the source has caught up, though heartbeats are refused and the process is not ready."""
    caught_up = partition(source_offset=100, reached_start_end=True)
    source = connector(task(caught_up), has_reported_all=True)
    heartbeat = connector(task(state="FAILED"), name="beat", state="FAILED", has_reported_all=True)
    state = view(source, heartbeat, ready=False)

    assert progress.summary(source, state)["caughtUp"]
    assert not progress.summary(replace(source, has_reported_all=False), state)["caughtUp"]
    assert "Stuck" == progress.summary(heartbeat, state)["replicating"]


def test_a_connector_without_partitions_runs_and_copies_nothing():
    """Heartbeats: a running task, nothing to catch up with."""
    found = summary(connector(task(), has_reported_all=True))

    assert {"total": 1, "running": 1, "failed": 0} == found["tasks"]
    assert 0 == found["partitions"]["total"]
    assert ("Idle", False, 0) == (found["replicating"], found["caughtUp"], found["lagRecords"])


def test_a_process_that_waits_for_the_flow_does_not_say_that_there_is_nothing_to_copy():
    """It has no partitions while another process owns the flow, which may have died without leaving it."""
    found = summary(connector(has_reported_all=True, is_standby=True))

    assert ("Waiting", False) == (found["replicating"], found["caughtUp"])


def test_a_node_without_a_part_says_that_it_waits_for_one():
    """Other nodes report the work; this one reports that it is alive, and counts nothing of theirs."""
    report = connector(task(partition(0), is_here=False), is_here=False)
    found = json.loads(
        content(progress.answer({}, local_view(view(report, in_group=True, samples=moved(report)))))
    )

    assert (found["connector"], found["state"], found["replicating"]) == (
        report.name,
        "UNASSIGNED",
        "Waiting",
    )
    assert (found["partitions"]["total"], found["lagRecords"], found["records"]) == (0, 0, 0)


def test_why_a_connector_stands_is_handed_out() -> None:
    """That another process owns its flow, the error of each failed task, and that of each cluster."""
    side = SideReport(reason="Unreachable", since_s=NOW_S - 8, message="Cluster B cannot be reached.")
    failed = task(state="FAILED", reason="TaskEnded", trace="It ended.")
    report = connector(failed, task(number=1), is_standby=True, target=side)

    (found,) = json.loads(content(progress.partitions({}, view(report))))["connectors"]

    assert [{"task": 0, "reason": "TaskEnded", "message": "It ended."}] == found["failedTasks"]
    assert found["standby"] is True
    assert ("Unreachable", 8.0, "Cluster B cannot be reached.") == tuple(
        found["target"][name] for name in ("reach", "sinceSeconds", "message")
    )
    assert "Cluster B cannot be reached." == summary(report)["target"]["message"]
    assert "message" not in summary(report)["source"]


def test_table_has_the_summary_and_the_aliases():
    """One request gives a console all of a flow."""
    source = connector(task(partition()))
    shown = view(source, samples=moved(source), ready=True)

    table = json.loads(content(progress.partitions({}, shown)))

    assert table["summary"] == json.loads(content(progress.answer({}, shown)))
    assert [(one["sourceAlias"], one["targetAlias"]) for one in table["connectors"]] == [("A", "B")]
    assert json.loads(content(progress.partitions({}, view())))["summary"] is None
