"""GET /progress: a bounded summary of a connector, and the table of its partitions."""

import json
from dataclasses import replace

import pytest

from mirrorflow_core.reports import GroupsReport, Guarantee, PartitionPhase, SideReport
from mirrorflow_replicator.http import progress
from mirrorflow_replicator.http.partition_rates import Samples
from mirrorflow_replicator.http.replicating_state import has_started
from mirrorflow_replicator.http.worker_view import local_view
from tests.unit.http.reports import NOW_S, connector, content, partition, samples_of_progress, task, view

LOST = partition(1, phase=PartitionPhase.STOPPED, reason="SourceDataLost", message="gone")


def summary(report, **changes):
    response = progress.respond({}, view(report, **changes))
    assert response.status == 200
    assert len(content(response)) <= progress.SUMMARY_MAX_BYTES
    return json.loads(content(response))


def test_the_summary_sums_over_partitions():
    """The lag is the sum of offsets, and its age is the maximum. Rates come from samples."""
    report = connector(
        task(partition(0), partition(1, guarantee=Guarantee.AT_LEAST_ONCE, reached_start_end=True))
    )
    body = summary(report, samples=samples_of_progress(report))

    assert body["partitions"] == {
        "total": 2,
        "copying": 2,
        "starting": 0,
        "waiting": 0,
        "stopped": 0,
        "behindStart": 1,
        "lagUnknown": 0,
        "stalled": 0,
    }
    assert tuple(body[key] for key in ("lagRecords", "lagSeconds", "recordsPerSecond", "bytesPerSecond")) == (
        20,
        4.0,
        18.0,
        180.0,
    )
    assert (
        body["records"],
        body["bytes"],
        body["caughtUp"],
        body["replicating"],
    ) == (180, 1800, False, "Advancing")
    assert body["guarantee"] == {"exactly-once": 1, "at-least-once": 1}


def test_the_summary_has_a_bounded_size():
    """The worker has thousands of partitions with long names, messages and reasons."""
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
STOPPED_WITHOUT_OFFSETS = partition(
    1, phase=PartitionPhase.STOPPED, source_offset=None, source_end_offset=None
)
REFUSED = (
    "Target topic A.secret-topic cannot be created: no.",
    "Target topic A.other cannot be created: no.",
)


@pytest.mark.parametrize(
    ("parts", "changes", "state"),
    [
        ([CAUGHT_UP], {}, "Idle"),
        ([partition()], {}, "Stuck"),
        ([partition()], {"started_at_s": NOW_S - 5}, "Waiting"),
        ([partition(phase=PartitionPhase.WAITING)], {}, "Waiting"),
        (
            [partition(phase=PartitionPhase.STARTING, source_offset=None)],
            {"started_at_s": NOW_S - 5},
            "Waiting",
        ),
        ([partition(phase=PartitionPhase.STARTING, source_offset=None)], {}, "Stuck"),
        ([CAUGHT_UP, LOST], {}, "SourceDataLost"),
        ([CAUGHT_UP], {"state": "FAILED"}, "Stuck"),
        ([], {}, "Idle"),
        ([partition(source_end_offset=None)], {}, "Waiting"),
        ([CAUGHT_UP, partition(1, source_end_offset=None)], {"started_at_s": NOW_S - 1}, "Waiting"),
        ([STOPPED_WITHOUT_OFFSETS], {}, "Stuck"),
        ([CAUGHT_UP, STOPPED_WITHOUT_OFFSETS], {}, "Idle"),
        ([], {"state": "UNASSIGNED", "started_at_s": NOW_S - 5}, "Waiting"),
        ([], {"state": "UNASSIGNED"}, "Stuck"),
        ([], {"uncopied": REFUSED}, "Stuck"),
        ([], {"uncopied": REFUSED, "started_at_s": NOW_S - 5}, "Waiting"),
        ([CAUGHT_UP], {"uncopied": REFUSED}, "Stuck"),
        ([CAUGHT_UP], {"nothing_selected": "No topic."}, "Idle"),
        ([CAUGHT_UP, LOST], {"uncopied": REFUSED}, "SourceDataLost"),
    ],
)
def test_replicating_follows_from_lag_phases_and_progress(parts, changes, state):
    """A connector that has lag but copies nothing is stuck."""
    assert state == summary(connector(task(*parts), **changes))["replicating"]


def test_a_stalled_partition_is_counted_with_its_reason():
    """Its row has the duration of the stall. The other partition advances."""
    since_ms = int(1000 * NOW_S) - 45_000
    stalled = partition(1, reason="WritesRefused", message="it is refused.", stalled_since_ms=since_ms)
    report = connector(task(partition(0), stalled))

    body = summary(report)
    rows = json.loads(content(progress.partitions({}, view(report))))["partitions"]

    assert (body["partitions"]["stalled"], body["partitions"]["copying"]) == (1, 2)
    assert body["reasons"] == [
        {"reason": "WritesRefused", "count": 1, "example": f"{stalled.topic}-1: it is refused."}
    ]
    assert [row["stalledSeconds"] for row in rows] == [None, 45.0]


def test_copied_heartbeats_do_not_count_as_progress():
    """They advance while all other partitions are stuck, and while there is nothing else to copy."""
    heartbeats = replace(partition(), topic="west.heartbeats")
    lagging = connector(task(heartbeats, partition(1)))
    idle = connector(task(heartbeats, replace(CAUGHT_UP, partition=1)))

    samples = samples_of_progress(connector(task(heartbeats)))
    states = [summary(report, samples=samples)["replicating"] for report in (lagging, idle)]

    assert ["Stuck", "Idle"] == states


def test_topics_named_like_heartbeats_count_as_progress_if_there_are_no_others():
    """`orders.heartbeats` may be a user's topic. A flow with only such topics is advancing or stuck, not idle."""
    only = connector(task(partition(topic="orders.heartbeats"), partition(topic="heartbeats")))

    states = [
        summary(only, samples=samples)["replicating"] for samples in (samples_of_progress(only), Samples())
    ]

    assert ["Advancing", "Stuck"] == states


def test_the_heartbeats_of_the_flow_never_count_as_progress():
    """A flow that only copies `heartbeats` has nothing to copy."""
    only = connector(task(partition(topic="heartbeats")))

    assert "Idle" == summary(only, samples=samples_of_progress(only))["replicating"]


@pytest.mark.parametrize(
    ("properties", "topic"),
    [
        ({}, "west.heartbeats"),
        ({"replication.policy.separator": "_"}, "west_heartbeats"),
        ({"replication.policy.class": "IdentityReplicationPolicy"}, "west.heartbeats"),
    ],
)
def test_heartbeats_are_recognized_by_the_replication_policy(properties, topic):
    report = connector(task(partition(topic=topic), partition(1)), properties=properties)
    heartbeats = connector(task(partition(topic=topic)), properties=properties)

    assert "Stuck" == summary(report, samples=samples_of_progress(heartbeats))["replicating"]


def test_a_topic_with_a_different_separator_before_heartbeats_counts_as_progress():
    """The policy of the flow uses a different separator."""
    report = connector(
        task(partition(topic="west.heartbeats"), partition(1)),
        properties={"replication.policy.separator": "_"},
    )
    advancing = connector(task(partition(topic="west.heartbeats")))

    assert "Advancing" == summary(report, samples=samples_of_progress(advancing))["replicating"]


def test_the_summary_has_the_first_warnings_and_their_number():
    """Long warnings are cut. `/connectors/.../status` has all of them."""
    warnings = tuple(f"Topic {n} has no ACLs." + " x" * 200 for n in range(5))
    body = summary(connector(task(CAUGHT_UP), warnings=warnings))

    assert body["warnings"] == 5
    assert [text[:8] for text in body["firstWarnings"]] == ["Topic 0 ", "Topic 1 ", "Topic 2 "]
    assert max(map(len, body["firstWarnings"])) <= progress.WARNING_MAX


def test_a_connector_is_advancing_even_if_a_topic_is_refused():
    """The refused topic is in the reasons."""
    report = connector(task(partition()), uncopied=REFUSED)

    assert "Advancing" == summary(report, samples=samples_of_progress(report))["replicating"]


def test_topics_without_a_copy_make_a_connector_stuck_after_the_first_reports():
    """Before the first reports, partitions may still be starting. Afterwards, waiting longer is useless."""
    report = connector(task(), uncopied=REFUSED, started_at_s=NOW_S - 5)

    assert ["Waiting", "Stuck"] == [summary(report, ready=ready)["replicating"] for ready in (False, True)]


def test_a_connector_without_partitions_is_idle_after_the_first_reports():
    """An empty selection must not look like a slow start."""
    report = connector(task(), started_at_s=NOW_S - 5)

    assert ["Waiting", "Idle"] == [summary(report, ready=ready)["replicating"] for ready in (False, True)]


def test_a_flow_with_topics_without_a_copy_is_never_caught_up():
    """The topics are a reason, with an example. The flow is not caught up even if all partitions are."""
    report = connector(task(CAUGHT_UP))
    ready = summary(report, ready=True)
    refused = summary(replace(report, uncopied=REFUSED), ready=True)

    assert [True, False] == [ready["caughtUp"], refused["caughtUp"]]
    reason = {"reason": "TopicNotCopied", "count": 2, "example": REFUSED[0]}
    assert [[], [reason]] == [ready["reasons"], refused["reasons"]]


@pytest.mark.parametrize("stopped", [False, True])
def test_lag_is_unknown_while_the_source_is_unreachable(stopped: bool):  # noqa: FBT001
    """The last known end offsets may be outdated."""
    parts = (
        [CAUGHT_UP, partition(1, phase=PartitionPhase.STOPPED, source_offset=100)] if stopped else [CAUGHT_UP]
    )
    unreachable = SideReport(reason="Unreachable", since_s=NOW_S - 60)
    body = summary(connector(task(*parts), source=unreachable), ready=True)

    assert body["partitions"]["lagUnknown"] == len(parts)
    assert body["replicating"] == "Waiting"


def test_a_zero_lag_is_unknown_while_the_target_is_unreachable():
    """While the target is unreachable, nothing is fetched.

    A known lag above zero has not decreased.
    """
    unreachable = SideReport(reason="Unreachable", since_s=NOW_S - 60)
    idle = summary(connector(task(CAUGHT_UP), target=unreachable), ready=True)
    lagging = summary(connector(task(partition()), target=unreachable), ready=True)

    assert (1, "Waiting") == (idle["partitions"]["lagUnknown"], idle["replicating"])
    assert (0, 10) == (lagging["partitions"]["lagUnknown"], lagging["lagRecords"])


def test_the_summary_has_warnings_about_settings_first():
    """The worker reads these warnings from its files. Each is listed once, before the warnings of connectors."""
    typo = "topics.includ: unknown, it has no effect."
    state = view(connector(warnings=("One is left out.",)), warnings=(typo, typo))
    body = json.loads(content(progress.respond({}, state)))

    assert (2, [typo, "One is left out."]) == (body["warnings"], body["firstWarnings"])


def test_a_connector_without_partitions_is_not_idle_while_a_cluster_is_unreachable():
    """A checkpoint connector never has partitions.

    A source connector has none before it has connected to both clusters.
    """
    unreachable = SideReport(reason="Unreachable", since_s=NOW_S - 60)

    assert "Waiting" == summary(connector(source=unreachable), ready=True)["replicating"]
    assert "Waiting" == summary(connector(target=unreachable), ready=True)["replicating"]


def test_a_zero_lag_is_unknown_while_a_task_process_does_not_report():
    silent = partition(
        phase=PartitionPhase.STARTING, source_offset=110, reason="TaskSilent", stalled_since_ms=1000
    )

    body = summary(connector(task(silent)), ready=True, monotonic_s=NOW_S + 60)

    assert (1, "Stuck") == (body["partitions"]["lagUnknown"], body["replicating"])


def test_a_flow_that_selects_no_topic_is_never_caught_up():
    """It still copies heartbeats, which have caught up."""
    report = connector(task(CAUGHT_UP), nothing_selected="No topic of east is selected.")
    body = summary(report, ready=True)
    table = json.loads(content(progress.partitions({}, view(report))))

    assert not body["caughtUp"]
    reason = {"reason": "NothingMatches", "count": 1, "example": "No topic of east is selected."}
    assert body["reasons"] == [reason]
    assert table["nothingSelected"] == "No topic of east is selected."


def test_the_table_has_the_first_topics_that_are_not_copied_and_their_number():
    many = tuple(f"Target topic A.t{number} cannot be created: no." for number in range(150))
    table = json.loads(content(progress.partitions({}, view(connector(task(), uncopied=many)))))

    assert (150, list(many[:100])) == (table["uncopiedTotal"], table["uncopied"])


def test_a_connector_is_throttled_only_after_a_recent_throttle_time():
    """A throttle time a minute ago is too old."""
    report = connector(task(partition(), throttle_ms=50))
    samples = samples_of_progress(report)

    assert summary(report, samples=samples)["replicating"] == "Throttled"
    assert summary(report, samples=samples, monotonic_s=NOW_S + 60)["replicating"] == "Stuck"


@pytest.mark.parametrize(("is_rate_limited", "state"), [(True, "Advancing"), (False, "Stuck")])
def test_a_connector_that_waits_for_its_own_rate_limit_is_not_stuck(is_rate_limited, state):
    """At 20 KiB/s, one response of 1 MiB uses up the limit for longer than the window."""
    report = connector(task(partition(), is_rate_limited=is_rate_limited))
    samples = samples_of_progress(report)

    assert summary(report, samples=samples, monotonic_s=NOW_S + 60)["replicating"] == state


@pytest.mark.parametrize("step_s", [-3600.0, 0.0, 3600.0])
def test_only_record_ages_follow_a_wall_clock_that_steps(step_s: float):
    """Rates, states and durations follow the monotonic clock."""
    up_s = 500.0
    stalled = partition(1, records=0, bytes=0, reason="WritesRefused", stalled_since_ms=470_000)
    report = connector(
        task(partition(), stalled),
        started_at_s=up_s - 100,
        source=SideReport(reason="", since_s=up_s - 50, cluster_id="east"),
        groups=GroupsReport(passed_s=up_s - 30, interval_s=60.0, read_again_records=7),
    )
    samples = Samples()
    samples.observe(report.name, task(partition(records=0, bytes=0), stalled), up_s - 10)
    samples.observe(report.name, report.tasks[0], up_s)
    now = {"samples": samples, "monotonic_s": up_s, "now_s": NOW_S + step_s}

    body = summary(report, **now)
    rows = json.loads(content(progress.partitions({}, view(report, **now))))["partitions"]

    assert (body["uptimeSeconds"], body["recordsPerSecond"], body["replicating"]) == (100, 9, "Advancing")
    assert (body["source"]["sinceSeconds"], body["checkpoints"]["ageSeconds"]) == (50, 30)
    assert body["checkpoints"]["recordsReadAgain"] == 7
    assert [row["stalledSeconds"] for row in rows] == [None, 30]
    assert body["lagSeconds"] == max(0, 4 + step_s)


def test_the_lag_age_of_an_idle_topic_counts_from_its_new_record():
    """The new record is not late, although there were no records for days."""
    samples, day_s = Samples(), 86_400.0
    quiet = partition(source_offset=100, record_timestamp_ms=1000)
    samples.observe("c", task(quiet), NOW_S - 10 * day_s)
    with_new_record = replace(quiet, source_end_offset=101)
    samples.observe("c", task(with_new_record), NOW_S - 2)

    assert samples.lag_s("c", with_new_record, NOW_S, NOW_S) == 2.0
    assert samples.lag_s("c", quiet, NOW_S, NOW_S) == 0.0


def test_the_lag_age_with_an_open_transaction_counts_from_the_start_of_the_stall():
    """Hidden records count as lag only after they have stalled the partition.

    The lag is then older than its first report.
    """
    samples = Samples()
    copied = partition(source_offset=100, source_end_offset=100, record_timestamp_ms=1000)
    samples.observe("c", task(copied), NOW_S - 500)
    since_ms = round(1000 * (NOW_S - 40))
    held = replace(copied, source_end_offset=140, reason="OpenTransaction", stalled_since_ms=since_ms)
    samples.observe("c", task(held), NOW_S - 10)

    assert samples.lag_s("c", held, NOW_S, NOW_S) == 40.0


def test_a_partition_stalled_by_an_open_transaction_is_not_idle():
    held = partition(
        source_end_offset=140, reason="OpenTransaction", stalled_since_ms=round(1000 * (NOW_S - 40))
    )
    body = summary(connector(task(held), started_at_s=NOW_S - 600))

    assert (body["replicating"], body["lagRecords"]) == ("Stuck", 140 - (held.source_offset or 0))


def test_the_lag_age_of_a_backlog_is_the_age_of_the_last_copied_record():
    """Without timestamps the age is derived from the rate. Without a rate it is unknown."""
    assert Samples().lag_s("c", partition(), NOW_S, NOW_S) == 4.0
    assert Samples().lag_s("c", partition(record_timestamp_ms=None), NOW_S, NOW_S) is None
    unknown = partition(record_timestamp_ms=None)
    report = connector(task(unknown))
    assert pytest.approx(samples_of_progress(report).lag_s(report.name, unknown, NOW_S, NOW_S)) == 10 / 9


def test_rates_drop_old_samples_and_are_not_negative_after_a_restart():
    """A rate is zero after the window. The counts of a restarted task begin at zero."""
    report = connector(task(partition()))
    samples = samples_of_progress(report)

    assert samples.rate(report.name, "orders", 0, NOW_S).records == 9.0
    assert samples.rate(report.name, "orders", 0, NOW_S + 61).records == 0.0
    samples.observe(report.name, task(partition(records=5, bytes=50)), NOW_S + 1)
    assert samples.rate(report.name, "orders", 0, NOW_S + 2).records == 5.0
    samples.retain(report.name, [])
    assert samples.rate(report.name, "orders", 0, NOW_S + 2).records == 0.0


def test_the_table_lists_partitions_by_descending_lag():
    """The request limits their number. The table has the total."""
    report = connector(task(*(partition(n, source_end_offset=100 + n) for n in range(5))))
    body = json.loads(content(progress.partitions({"limit": "2"}, view(report))))

    assert (body["total"], [row["partition"] for row in body["partitions"]]) == (5, [4, 3])
    assert progress.partitions({"limit": "-1"}, view(report)).status == 400
    assert json.loads(content(progress.partitions({"connector": "none"}, view(report))))["partitions"] == []


def test_the_table_in_columns_has_the_same_values():
    report = connector(task(partition(0), partition(1, "bills")))
    rows = json.loads(content(progress.partitions({}, view(report))))
    columns = json.loads(content(progress.partitions({"columns": "yes"}, view(report))))
    listed = columns.pop("columns")

    assert {name: listed[name] for name in ("partition", "topic", "guarantee")} == {
        "partition": [1, 0], "topic": ["bills", "orders"], "guarantee": "exactly-once",
    }  # fmt: skip
    for index, row in enumerate(rows.pop("partitions")):
        assert row == {
            name: column[index] if isinstance(column, list) else column for name, column in listed.items()
        }
    assert columns == rows


def test_the_columns_of_one_partition_are_values_and_those_of_none_are_absent():
    report = connector(task(partition(3)))
    single = json.loads(content(progress.partitions({"columns": "yes"}, view(report))))["columns"]
    none = json.loads(content(progress.partitions({"limit": "0", "columns": "yes"}, view(report))))["columns"]

    assert (single["partition"], single["topic"], none) == ([3], "orders", {})


def test_a_partition_shows_no_lag_of_zero_while_a_cluster_is_away():
    away = SideReport(reason="Unreachable", since_s=NOW_S - 60)
    report = connector(task(partition(0), partition(1, source_offset=100)), source=away)
    rows = json.loads(content(progress.partitions({}, view(report))))["partitions"]

    assert [(row["partition"], row["lagRecords"]) for row in rows] == [(0, 10), (1, None)]


def test_a_client_with_the_current_digest_receives_only_figures():
    query = {"limit": "0", "unless": ""}
    before = json.loads(content(progress.partitions(query, view(connector(task(partition(records=1)))))))
    later = view(connector(task(partition(records=7))), monotonic_s=NOW_S + 9, now_s=NOW_S + 9)

    same = json.loads(content(progress.partitions({**query, "unless": before["digest"]}, later)))

    assert same.keys() == {"version", "digest", "figures", "partitions"}
    assert (same["figures"]["records"], same["figures"]["uptimeSeconds"]) == (7, 109.0)


@pytest.mark.parametrize(
    "changed",
    [
        connector(task(LOST)),
        connector(task(partition()), state="PAUSED"),
        connector(task(partition()), warnings=("A warning.",)),
        connector(task(partition()), target=SideReport(reason="Unreachable", since_s=NOW_S, message="Away.")),
    ],
)
def test_a_client_with_an_old_digest_receives_everything(changed):
    query = {"unless": ""}
    known = json.loads(content(progress.partitions(query, view(connector(task(partition()))))))["digest"]

    body = json.loads(content(progress.partitions({"unless": known}, view(changed))))

    assert body["digest"] != known
    assert {"summary", "connectors", "partitions"} <= body.keys()


def test_a_change_of_what_groups_would_read_again_changes_the_digest():
    """A console shows it from the summary, and nothing else of the response changes with it."""
    query = {"connector": "A->B.checkpoint", "unless": ""}

    def digest(**groups):
        report = connector(
            name="A->B.checkpoint",
            connector_class="MirrorCheckpointConnector",
            groups=GroupsReport(selected=2, **groups),
        )
        return json.loads(content(progress.partitions(query, view(report))))["digest"]

    assert digest(read_again_records=5) != digest(read_again_records=70)
    assert digest(passed_s=NOW_S - 1, checkpoints=4) == digest(passed_s=NOW_S - 9, checkpoints=5)


def test_the_summary_of_an_unknown_connector_is_404():
    assert progress.respond({"connector": "none"}, view(connector())).status == 404


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
def test_a_connector_has_started_after_each_partition_was_fetched_once(report, started):
    """Readiness waits for tasks and for the first fetch response of each partition, which may be an error."""
    assert started == has_started((report,))


def test_a_failed_connector_does_not_affect_the_summary_of_another():
    """The source connector has caught up although the heartbeat connector failed and the process is not ready."""
    caught_up = partition(source_offset=100, reached_start_end=True)
    source = connector(task(caught_up), has_reported_all=True)
    heartbeat = connector(task(state="FAILED"), name="beat", state="FAILED", has_reported_all=True)
    state = view(source, heartbeat, ready=False)

    assert progress.summary(source, state)["caughtUp"]
    assert not progress.summary(replace(source, has_reported_all=False), state)["caughtUp"]
    assert "Stuck" == progress.summary(heartbeat, state)["replicating"]


def test_a_heartbeat_connector_is_idle():
    """It has a running task and no partitions."""
    body = summary(connector(task(), has_reported_all=True))

    assert {"total": 1, "running": 1, "failed": 0} == body["tasks"]
    assert 0 == body["partitions"]["total"]
    assert ("Idle", False, 0) == (body["replicating"], body["caughtUp"], body["lagRecords"])


def test_a_standby_process_is_waiting_instead_of_idle():
    """It has no partitions while a different process owns the flow. That process may be dead."""
    body = summary(connector(has_reported_all=True, is_standby=True))

    assert ("Waiting", False) == (body["replicating"], body["caughtUp"])


def test_a_node_without_tasks_reports_that_it_is_waiting():
    """The nodes with tasks report the partitions. This node reports none of them."""
    report = connector(task(partition(0), is_here=False), is_here=False)
    body = json.loads(
        content(
            progress.respond({}, local_view(view(report, in_group=True, samples=samples_of_progress(report))))
        )
    )

    assert (body["connector"], body["state"], body["replicating"]) == (
        report.name,
        "UNASSIGNED",
        "Waiting",
    )
    assert (body["partitions"]["total"], body["lagRecords"], body["records"]) == (0, 0, 0)


def test_the_table_has_standby_failed_tasks_and_cluster_errors() -> None:
    """They explain why a connector does not copy."""
    side = SideReport(reason="Unreachable", since_s=NOW_S - 8, message="Cluster B cannot be reached.")
    failed = task(state="FAILED", reason="TaskEnded", trace="It ended.")
    report = connector(failed, task(number=1), is_standby=True, target=side)

    (body,) = json.loads(content(progress.partitions({}, view(report))))["connectors"]

    assert [{"task": 0, "reason": "TaskEnded", "message": "It ended."}] == body["failedTasks"]
    assert body["standby"] is True
    assert ("Unreachable", 8.0, "Cluster B cannot be reached.") == tuple(
        body["target"][name] for name in ("reach", "sinceSeconds", "message")
    )
    assert "Cluster B cannot be reached." == summary(report)["target"]["message"]
    assert "message" not in summary(report)["source"]


def test_table_has_the_summary_and_the_aliases():
    """Therefore the console needs only one request per flow."""
    source = connector(task(partition()))
    state = view(source, samples=samples_of_progress(source), ready=True)

    table = json.loads(content(progress.partitions({}, state)))

    assert table["summary"] == json.loads(content(progress.respond({}, state)))
    assert [(entry["sourceAlias"], entry["targetAlias"]) for entry in table["connectors"]] == [("A", "B")]
    assert json.loads(content(progress.partitions({}, view())))["summary"] is None
