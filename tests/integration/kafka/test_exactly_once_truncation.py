"""An unclean election rewrites the source while no copier reads it: positions are after the common part of the log.

    offsets       0 ........ 1,000 ........ 1,500 ........ 2,000 ........ 2,800
    before        ├─ records that survive ──────┤├─ lost ─┤
    positions                 killed                  stopped, frozen
    copied                                            all
    afterwards    ├─ records that survive ──────┤├─ others, at the lost offsets and behind them ──────┤

Offset 2,000 and all before it still exist: only the leader epoch of the source shows the change (KIP-101).
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.elections import (
    FOLLOWER,
    LEADER,
    QUICK_ELECTIONS,
    elected_again,
    fragile_topic,
    tail_lost,
)
from tests.harness.kafka.processes import HarnessError, wait_until
from tests.harness.kafka.tools import load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import Flow, contents, wait_for_outcome

pytestmark = pytest.mark.faults

NEVER = {"offset.flush.interval.ms": "3600000"}
ABSENCES = ("stopped", "frozen", "killed")
EARLY = "killed, back before anything is written"
POLICIES = ("fail", "alert", "restart")
FIRST, SURVIVE, COPIED, END = 1_000, 1_500, 2_000, 2_800
# Records that only the first leader has in its epoch: its log ends before, or after, the position of the flows.
ALONE = (40, 700)
Contents = list[tuple[object, ...]]


@dataclass(kw_only=True, slots=True)
class Rewritten:
    """The outcome of each flow, by absence and policy; *before* and *after* are the contents of the source."""

    before: Contents
    after: Contents
    outcomes: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    copied: dict[tuple[str, str], Contents] = field(default_factory=dict)


@pytest.fixture(scope="module")
def rewritten(west: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rewritten]:
    """One election for all tests. During it, nine flows are stopped, frozen or killed."""
    folder = tmp_path_factory.mktemp("rewritten")
    with KafkaCluster(name="trio", brokers=3, config=QUICK_ELECTIONS) as trio, ExitStack() as stack:
        yield _rewrite(trio, west, folder, stack)


def _copied(flow: Flow, topic: str) -> Contents:
    """Returns what readers of committed records receive while the copying process runs."""
    flow.wait_until_committed(topic)
    return contents(records(flow.target, flow.remote(topic), isolation="read_committed"))


def _rewrite(trio: KafkaCluster, west: KafkaCluster, folder: Path, stack: ExitStack) -> Rewritten:
    topic = fragile_topic(trio, "rewritten")
    flows = {
        (absence, policy): Flow.new(trio, west, folder, connector={"mirrorflow.source.loss.policy": policy})
        for absence in ABSENCES
        for policy in POLICIES
    }

    def started(absence: str, lines: dict[str, str] | None = None) -> list[Replicator]:
        running = [flows[absence, policy].replicator(topic, lines) for policy in POLICIES]
        for replicator in running:
            stack.enter_context(replicator)
        for replicator in running:
            replicator.wait_until_caught_up()
        return running

    load(trio, topic, FIRST)
    for replicator in started("killed"):
        replicator.stop()
    load(trio, topic, SURVIVE - FIRST, first=FIRST)
    with tail_lost(trio, topic):
        load(trio, topic, COPIED - SURVIVE, first=SURVIVE)
        before = contents(records(trio, topic))
        absent = {"stopped": started("stopped"), "killed": started("killed", NEVER)}
        for replicator in absent["stopped"]:
            replicator.stop()
        for replicator in absent["killed"]:
            replicator.kill()
        absent["frozen"] = started("frozen")
        for replicator in absent["frozen"]:
            replicator.freeze()
    load(trio, topic, END - SURVIVE, first=5_000)
    result = Rewritten(before=before, after=contents(records(trio, topic)))
    for absence, running in absent.items():
        for replicator in running:
            replicator.thaw()
            if not replicator.running:
                replicator.start()
        for policy, replicator in zip(POLICIES, running, strict=True):
            try:
                result.outcomes[absence, policy] = wait_for_outcome(replicator, topic, END)
            except HarnessError:
                result.outcomes[absence, policy] = replicator.partition(topic)
            result.copied[absence, policy] = _copied(flows[absence, policy], topic)
            replicator.kill()
    return result


@pytest.mark.parametrize("absence", ABSENCES)
def test_by_default_the_partition_stops_with_source_data_lost(rewritten: Rewritten, absence: str):
    outcome = rewritten.outcomes[absence, "fail"]

    assert ("stopped", "SourceDataLost") == (outcome["phase"], outcome["reason"])
    assert rewritten.before == rewritten.copied[absence, "fail"]


@pytest.mark.parametrize("absence", ABSENCES)
def test_alert_continues_where_the_log_was_rewritten(rewritten: Rewritten, absence: str):
    outcome = rewritten.outcomes[absence, "alert"]

    assert rewritten.before + rewritten.after[SURVIVE:] == rewritten.copied[absence, "alert"]
    assert ("copying", "SourceDataLost") == (outcome["phase"], outcome["reason"])


@pytest.mark.parametrize("absence", ABSENCES)
def test_restart_copies_the_rewritten_log_from_its_beginning(rewritten: Rewritten, absence: str):
    outcome = rewritten.outcomes[absence, "restart"]

    assert rewritten.before + rewritten.after == rewritten.copied[absence, "restart"]
    assert ("copying", "SourceDataLost") == (outcome["phase"], outcome["reason"])


@pytest.fixture(scope="module", params=ALONE)
def diverged(
    request: pytest.FixtureRequest, west: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rewritten]:
    """The returning log has more records of the old epoch than the copied log, and none of the copied epoch:

    epochs        0 ........................ 1 ................. 2 ........
    copied        ├─ 1,500 that survive ──┤├─ 500 ─┤
    afterwards    ├─ 1,500 that survive, 40 ──────┤               ├─ others ─┤
    """
    folder = tmp_path_factory.mktemp("diverged")
    with KafkaCluster(name="trio", brokers=3, config=QUICK_ELECTIONS) as trio, ExitStack() as stack:
        yield _diverge(trio, west, folder, stack, request.param)


def _diverge(trio: KafkaCluster, west: KafkaCluster, folder: Path, stack: ExitStack, alone: int) -> Rewritten:
    topic = fragile_topic(trio, "diverged")
    flows = {
        absence: Flow.new(trio, west, folder, connector={"mirrorflow.source.loss.policy": "alert"})
        for absence in (*ABSENCES, EARLY)
    }

    def started(absence: str, lines: dict[str, str] | None = None) -> Replicator:
        running = stack.enter_context(flows[absence].replicator(topic, lines))
        running.wait_until_caught_up()
        return running

    load(trio, topic, FIRST)
    started("killed").stop()
    started(EARLY).stop()
    load(trio, topic, SURVIVE - FIRST, first=FIRST)
    with tail_lost(trio, topic):
        load(trio, topic, alone, first=8_000)
    load(trio, topic, COPIED - SURVIVE, first=SURVIVE)
    before = contents(records(trio, topic))
    absent = {"stopped": started("stopped"), "killed": started("killed", NEVER), "frozen": started("frozen")}
    absent["stopped"].stop()
    absent["killed"].kill()
    absent["frozen"].freeze()
    absent[EARLY] = started(EARLY, NEVER)
    absent[EARLY].kill()
    elected_again(trio, topic, leader=LEADER, instead_of=FOLLOWER)
    absent[EARLY].start()
    wait_until("the loss is reported", lambda: absent[EARLY].partition(topic).get("reason"))
    load(trio, topic, END - SURVIVE - alone, first=5_000)
    result = Rewritten(before=before, after=contents(records(trio, topic)))
    for absence, replicator in absent.items():
        replicator.thaw()
        if not replicator.running:
            replicator.start()
        result.outcomes[absence, "alert"] = wait_for_outcome(replicator, topic, END)
        result.copied[absence, "alert"] = _copied(flows[absence], topic)
        replicator.kill()
    return result


@pytest.mark.parametrize("absence", [*ABSENCES, EARLY])
def test_alert_continues_where_a_log_of_an_earlier_epoch_diverges_from_the_copy(
    diverged: Rewritten, absence: str
):
    outcome = diverged.outcomes[absence, "alert"]

    assert diverged.before + diverged.after[SURVIVE:] == diverged.copied[absence, "alert"]
    assert ("copying", "SourceDataLost") == (outcome["phase"], outcome["reason"])


def test_a_flow_continues_in_a_log_that_lacks_the_epoch_of_the_last_copied_record(
    west: KafkaCluster, tmp_path: Path
):
    """No record is written before its next start.

    That start has the same position as the start that detected the loss.
    """
    lines = {"mirrorflow.source.loss.policy": "alert"}
    with KafkaCluster(name="trio", brokers=3, config=QUICK_ELECTIONS) as trio:
        topic = fragile_topic(trio, "diverged")
        flow = Flow.new(trio, west, tmp_path, connector=lines)
        load(trio, topic, FIRST)
        with flow.replicator(topic) as replicator:
            replicator.wait_until_caught_up()
            with tail_lost(trio, topic, leader=FOLLOWER, follower=LEADER):
                load(trio, topic, 500, first=FIRST)
                replicator.wait_until_caught_up()
                before = contents(records(trio, topic))
            wait_until("the loss is reported", lambda: replicator.partition(topic).get("reason"))
            load(trio, topic, 300, first=5_000)
            wait_for_outcome(replicator, topic, FIRST + 300)
            after = contents(records(trio, topic))

            def copied() -> Contents:
                return contents(records(west, flow.remote(topic), isolation="read_committed"))

            wait_until("the new records are committed", lambda: copied() == before + after[FIRST:])
