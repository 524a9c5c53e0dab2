"""Stalled partitions are detected, reported once, and cleared when they copy again. Idle partitions are not checked."""

import asyncio
import contextlib
import logging
import math
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.copying.effects import Effects, EndSession, Signal
from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.copying.session import CopySession
from mirrorflow_core.errors import (
    CorruptBatchError,
    MirrorFlowError,
    NotAuthorizedError,
    UnreachableError,
    UnsupportedBrokerError,
)
from mirrorflow_core.reports import PartitionPhase
from mirrorflow_core.stall_detection import STALLED_AFTER_S
from mirrorflow_core.wire.error_codes import CORRUPT_MESSAGE, NOT_ENOUGH_REPLICAS
from mirrorflow_core.wire.fetch import FetchKey, PartitionFetchResponse
from mirrorflow_kafka.admin.log_requests import ActiveProducer, ProducersResponse
from mirrorflow_kafka.client.broker_writer import REQUEST_TIMEOUT_MS
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.copy import stall_watch
from mirrorflow_replicator.copy.partition_reports import partition_report as report_at
from mirrorflow_replicator.copy.rate_limiter import RateLimiter
from mirrorflow_replicator.copy.stall_watch import (
    CHECK_S,
    DESCRIBE_AGAIN_S,
    DESCRIBED_AFTER_S,
    DESCRIBED_MAX,
    JUDGE_AGAIN_S,
    LIMITED_S,
    LOGGED_MAX,
    RESYNCED_S,
    StallWatch,
)
from tests.unit.core.copying.stubs import begun_copier, new_session, resume, send, want_transaction
from tests.unit.core.copying.test_batch_packer import TIMESTAMP_MS, small_records
from tests.unit.core.wire.strategies import batch_of

PARTITIONS = 200


def partition_report(copier):
    return report_at(copier, TIMESTAMP_MS)


class Task:
    """The collaborators of a stall watch.

    Its clusters have leaders for all partitions, and the test advances its clock.
    """

    def __init__(self):
        self.now_s = 1000.0
        self.pace = RateLimiter(None)
        self.unled: set[PartitionCopier] = set()
        self.changes: list[PartitionCopier] = []
        self.dispatches: dict[PartitionCopier, Any] = {}
        self.session = new_session(partitions=PARTITIONS)
        routes: Any = SimpleNamespace(without_leader=self.unled, dispatch_of=self.dispatches.get)
        self.watch = StallWatch(
            source=self._cluster("east"),
            target=self._cluster("west"),
            routes=routes,
            pace=self.pace,
            is_crowded=lambda: False,
            on_change=self.changes.append,
        )
        self.watch.check(self.now_s)

    @staticmethod
    def _cluster(alias) -> Any:
        cluster = SimpleNamespace(alias=alias, leader=lambda *_: 1)
        cluster.raise_for = lambda *error: Cluster.raise_for(cluster, *error)  # type: ignore[arg-type]
        return cluster

    def copier(self, number=0, session: CopySession | None = None) -> PartitionCopier:
        """Returns a copier at source offset 100, which is the end of the source."""
        copier = begun_copier(TIMESTAMP_MS, session or self.session, number)
        copier.note_end(100)
        self.watch.changed(copier)
        return copier

    def lagging(self, number=0) -> PartitionCopier:
        """Returns a copier with a queued batch."""
        copier = self.copier(number)
        self.fetch(copier)
        return copier

    def serve(self, copier, *, reader=None, connection=None):
        """Connects *copier* to its brokers."""
        self.dispatches[copier] = SimpleNamespace(reader=reader, connection=connection)

    def apply(self, copier, effects: Effects):
        """Carries out the effects that the watch depends on, as the shell does."""
        if Signal.REPORT in effects:
            self.watch.changed(copier)

    def fetch(self, copier, count=3):
        """Delivers the next *count* records of the source, which are its last ones."""
        end = copier.cursor.offset + count
        fetch_response(self, copier, stable=end, end=end, records=count)

    def resume(self, copier):
        """Resumes a copier that has nothing in flight; it must not end its session."""
        effects = resume(copier, TIMESTAMP_MS)
        assert not any(isinstance(effect, EndSession) for effect in effects)
        self.apply(copier, effects)

    def reconnect(self, copier):
        """Connects the copier to the target's leader again."""
        self.apply(copier, copier.connected())
        self.resume(copier)

    def refuse(self, copier, code=NOT_ENOUGH_REPLICAS):
        """Simulates one round of a livelock: the batch is sent and refused, and copying resumes at the same offset."""
        assert send(copier, TIMESTAMP_MS) is not None
        self.apply(copier, copier.refused(code, ""))
        self.resume(copier)
        self.fetch(copier)

    def copy(self, copier):
        """Sends the next batch and acknowledges it."""
        assert send(copier, TIMESTAMP_MS) is not None
        self.apply(copier, copier.acknowledged(copier.stream.expected_target or 0, -1, TIMESTAMP_MS))

    def wait(self, seconds=STALLED_AFTER_S + 2 * CHECK_S, *, each=lambda: None):
        """Checks every second for *seconds*. *each* is called before every check."""
        for _ in range(round(seconds / CHECK_S)):
            self.now_s += CHECK_S
            each()
            self.watch.check(self.now_s)


class Reader:
    """The state of a reader of ten partitions."""

    partition_bytes = 1 << 20

    def __init__(self, *, node_id=1, held_until_s=-math.inf):
        self.node_id, self.held_until_s, self.responses = node_id, held_until_s, 0

    def __len__(self):
        return 10

    def changed(self, *_):
        """Does nothing, because this reader does not read."""


async def hold(pace, *, reader):
    """Makes *reader* wait for a rate limit that allows almost nothing."""
    pace.limit(1)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await pace.spend(1 << 30, reader=reader)


def fetch_response(task, copier, *, stable, end, records=0):
    """Delivers a fetch response with *records* records. *stable* is the last stable offset."""
    data = bytes(batch_of(small_records(records), base_offset=copier.cursor.offset).data) if records else b""
    response = PartitionFetchResponse(
        FetchKey(b"orders", copier.partition), 0, end, stable, 0, (), -1, memoryview(bytearray(data))
    )
    task.apply(copier, copier.fetched(response, copier.cursor.offset))


@pytest.fixture
def task() -> Task:
    return Task()


def test_writes_that_are_refused_for_30_s_are_a_stall(task):
    copier = task.lagging()

    task.wait(STALLED_AFTER_S - 1, each=lambda: task.refuse(copier))
    before = copier.health.stalled
    task.wait(2, each=lambda: task.refuse(copier))

    report = partition_report(copier)
    assert before is None
    assert (report.phase, report.reason, report.is_stalled) == (PartitionPhase.COPYING, "WritesRefused", True)
    assert "cluster west refused 30 writes, the last with NOT_ENOUGH_REPLICAS" in report.message
    assert task.changes == [copier]


def test_a_stall_ends_with_the_first_acknowledged_batch(task):
    copier = task.lagging()
    task.wait(each=lambda: task.refuse(copier))

    task.copy(copier)
    task.wait(1)

    report = partition_report(copier)
    assert (report.reason, report.message, report.is_stalled) == (None, None, False)
    assert task.changes == [copier, copier]


def test_an_idle_partition_is_not_checked_and_never_stalls(task):
    copiers = [task.copier(number) for number in range(100)]

    task.wait(1)
    checked_count = len(task.watch)
    task.wait(100)

    assert checked_count == 0
    assert [copier for copier in copiers if copier.health.stalled] == []


def test_a_partition_that_copies_never_stalls(task):
    copier = task.lagging()

    def copy():
        task.copy(copier)
        task.fetch(copier)

    task.wait(60, each=copy)

    assert copier.health.stalled is None


def test_a_source_that_does_not_send_its_records_is_a_stall(task):
    copier = task.copier()
    copier.note_end(200)

    task.wait()

    assert partition_report(copier).reason == "SourceNotAnswering"


def test_a_batch_without_a_response_is_a_stall(task):
    copier = task.lagging()
    assert send(copier, TIMESTAMP_MS) is not None

    task.wait()

    assert partition_report(copier).reason == "TargetNotAnswering"


def test_a_rate_limit_is_not_a_stall(task):
    copier = task.copier()
    copier.note_end(200)
    task.serve(copier, reader=Reader(node_id=3))
    asyncio.run(hold(task.pace, reader=3))

    task.wait()

    assert copier.health.stalled is None


def test_a_rate_limit_on_a_different_broker_does_not_hide_an_unresponsive_source(task):
    copier = task.copier()
    copier.note_end(200)
    task.serve(copier, reader=Reader(node_id=3))
    asyncio.run(hold(task.pace, reader=1))

    task.wait()

    assert partition_report(copier).reason == "SourceNotAnswering"


@pytest.mark.parametrize(("responses", "reason"), [(0, None), (1, "SourceNotAnswering")])
def test_a_rate_limit_hides_an_unresponsive_source_until_all_other_partitions_were_served(
    task, responses, reason
):
    """The reader of ten partitions receives a response each second, or none."""
    copier = task.copier()
    copier.note_end(200)
    reader = Reader(held_until_s=math.inf)
    task.serve(copier, reader=reader)

    def serve():
        reader.responses += responses

    task.wait(each=serve)

    assert partition_report(copier).reason == reason


def test_a_quota_is_not_a_stall(task):
    copier = task.lagging()
    task.serve(copier, connection=SimpleNamespace(held_until_s=math.inf))
    assert send(copier, TIMESTAMP_MS) is not None

    task.wait()

    assert copier.health.stalled is None


def test_a_read_limit_does_not_hide_an_unresponsive_target(task):
    """Within the request timeout, a sent batch gets a response or its connection is lost."""
    copier = task.lagging()
    connection = SimpleNamespace(held_until_s=-math.inf)
    task.serve(copier, reader=Reader(held_until_s=math.inf), connection=connection)
    assert send(copier, TIMESTAMP_MS) is not None

    task.wait()

    assert partition_report(copier).reason == "TargetNotAnswering"


def test_a_quota_explains_an_unresponsive_target_for_the_request_timeout():
    assert LIMITED_S == REQUEST_TIMEOUT_MS / 1000


def test_a_missing_commit_is_a_stall(task):
    """It is a stall even without lag, because read-committed consumers do not see the copied records."""
    copier = task.copier()
    want_transaction(copier, TIMESTAMP_MS)
    copier.joined(copier.resyncs, is_full=False)
    task.copy(copier)
    copier.held()

    task.wait(STALLED_AFTER_S + 3 * CHECK_S)

    assert partition_report(copier).reason == "CommitPending"


def test_an_idle_partition_without_a_leader_is_a_stall(task):
    copier = task.copier()
    task.wait(1)
    task.unled.add(copier)

    task.wait()

    assert copier.health.stalled is not None


def test_a_recurring_error_keeps_its_reason(task):
    copier = task.lagging()
    error = UnreachableError(cluster="west", addresses="b:9092", problem="refused")

    def fail():
        task.apply(copier, copier.delayed(error))
        task.reconnect(copier)
        task.fetch(copier)

    task.wait(each=fail)

    report = partition_report(copier)
    assert copier.health.error is None
    assert (report.reason, report.is_stalled) == ("Unreachable", True)
    assert "Cluster west cannot be reached at b:9092" in report.message


def test_repeatedly_broken_connections_are_a_stall(task):
    """The target refuses nothing and responds to each request."""
    copier = task.lagging()

    def connect():
        task.reconnect(copier)
        task.fetch(copier)

    task.wait(each=connect)

    assert partition_report(copier).reason == "NoDecision"


def resume_into_session_end(task, copier):
    """Reconnects a copier whose session must end."""
    task.apply(copier, copier.connected())
    assert any(isinstance(effect, EndSession) for effect in resume(copier, TIMESTAMP_MS))


def test_lost_responses_are_a_stall_while_the_session_does_not_end(task):
    """The target refuses nothing and responds to each request."""
    copier = task.lagging()
    assert send(copier, TIMESTAMP_MS) is not None
    task.apply(copier, copier.response_lost())

    task.wait(each=lambda: resume_into_session_end(task, copier))

    assert partition_report(copier).reason == "NoDecision"


def test_a_partition_at_its_end_that_keeps_resyncing_is_a_stall(task):
    """It never fetches, so its end offset may be outdated."""
    copier = task.copier()
    task.wait(1)

    task.wait(each=lambda: task.reconnect(copier))

    assert partition_report(copier).reason == "NoDecision"


def test_a_partition_is_idle_soon_after_a_resync(task):
    copier = task.copier()
    task.reconnect(copier)

    task.wait(RESYNCED_S + 2 * CHECK_S)

    assert len(task.watch) == 0


def test_pauses_of_the_process_are_not_a_stall(task):
    """A busy machine repeatedly pauses each process for one or two seconds."""
    copier = task.copier()
    task.reconnect(copier)

    def pause():
        task.apply(copier, copier.paused())
        task.watch.paused()
        task.resume(copier)

    task.wait(each=pause)

    assert copier.health.stalled is None


def test_acknowledged_batches_at_a_wrong_offset_are_a_stall(task):
    """The leader refuses the first batch and appends the second one at the offset of the first."""
    copier = task.copier()
    copier.single_in_flight = False
    for _ in range(2):
        task.fetch(copier)
        assert send(copier, TIMESTAMP_MS) is not None
    task.apply(copier, copier.refused(NOT_ENOUGH_REPLICAS, ""))
    copier.health.note_obstacle(None)  # the refusal explains the stall only for some time
    task.apply(copier, copier.acknowledged(0, -1, TIMESTAMP_MS))

    task.wait(each=lambda: resume_into_session_end(task, copier))

    assert copier.counts.records == 0
    assert partition_report(copier).reason == "NoDecision"


def test_a_stopped_partition_is_not_a_stall(task):
    copier = task.lagging()
    task.wait(each=lambda: task.refuse(copier))

    error = CorruptBatchError(topic="orders", partition=0, offset=100, problem="its checksum does not hold")
    task.apply(copier, copier.stop(error))
    task.wait()

    report = partition_report(copier)
    assert (report.phase, report.reason, report.is_stalled) == (PartitionPhase.STOPPED, "CorruptBatch", False)


def test_a_frozen_process_detects_no_stall_when_it_continues(task):
    copier = task.lagging()
    assert send(copier, TIMESTAMP_MS) is not None
    task.wait(10)

    task.now_s += 3600
    task.watch.check(task.now_s)

    assert copier.health.stalled is None


def test_a_stall_is_logged_once_and_again_when_it_recurs(task, caplog):
    caplog.set_level(logging.WARNING)
    copier = task.lagging()

    task.wait(100, each=lambda: task.refuse(copier))
    first_count = len(caplog.messages)
    task.copy(copier)
    task.fetch(copier)
    task.wait(100, each=lambda: task.refuse(copier))

    assert (first_count, len(caplog.messages)) == (1, 2)


def test_the_message_does_not_change_with_each_refusal(task):
    """A tool that prints each change would print it every second."""
    copier = task.lagging()
    task.wait(each=lambda: task.refuse(copier))
    first = partition_report(copier)

    task.wait(20, each=lambda: task.refuse(copier))

    assert partition_report(copier).message == first.message
    assert task.changes == [copier]


def test_a_new_cause_is_reported(task):
    copier = task.lagging()
    task.wait(each=lambda: task.refuse(copier))
    first = partition_report(copier)

    task.wait(JUDGE_AGAIN_S, each=lambda: task.refuse(copier, CORRUPT_MESSAGE))

    report = partition_report(copier)
    assert "CORRUPT_MESSAGE" in report.message
    assert report.stalled_since_ms == first.stalled_since_ms


def test_many_stalls_are_logged_in_a_few_lines(task, caplog):
    caplog.set_level(logging.WARNING)
    for number in range(PARTITIONS):
        send(task.lagging(number), TIMESTAMP_MS)

    task.wait()

    assert len(caplog.messages) == LOGGED_MAX + 1
    assert caplog.messages[-1] == "195 more partitions are stalled: TargetNotAnswering."


def test_a_leaving_partition_is_forgotten(task):
    copier = task.lagging()
    task.wait(each=lambda: task.refuse(copier))

    task.apply(copier, copier.leave())
    task.watch.forget(copier)
    task.wait()

    assert (copier.health.stalled, len(task.watch)) == (None, 0)


STABLE = 100  # copiers of `held_copier` wait at this last stable offset


def held_copier(task, number=0, *, stable=STABLE, end=140):
    """Returns a read-committed copier whose source has an open transaction from *stable* on."""
    session = new_session(read_committed=True, partitions=PARTITIONS)
    copier = task.copier(number, session)
    fetch_response(task, copier, stable=stable, end=end)
    return copier


class Leaders:
    """The source's leaders. `requests` has the number of partitions of each DescribeProducers request."""

    def __init__(self, monkeypatch, *, error=0, failure: MirrorFlowError | None = None):
        self.requests: list[int] = []
        self.errors: list[str] = []
        self._error, self._failure = error, failure
        monkeypatch.setattr(stall_watch, "describe_producers", self._describe)

    async def _describe(self, _, partitions):
        self.requests.append(len(partitions))
        if self._failure is not None:
            raise self._failure
        none = {"last_sequence": 0, "coordinator_epoch": 0, "epoch": 0, "last_timestamp": -1}
        open_producer = ActiveProducer(producer_id=4000, current_txn_start_offset=STABLE, **none)
        later = ActiveProducer(producer_id=4001, current_txn_start_offset=STABLE + 5, **none)
        idle = ActiveProducer(producer_id=4002, current_txn_start_offset=-1, **none)
        response = ProducersResponse(error=self._error, producers=(idle, later, open_producer))
        return dict.fromkeys(partitions, response)

    def describe(self, task):
        asyncio.run(task.watch._describe(lambda error: self.errors.append(error.reason)))


def test_an_open_transaction_of_the_source_is_a_stall_that_names_its_producer(task, monkeypatch):
    leaders, copier = Leaders(monkeypatch), held_copier(task)

    task.wait(each=lambda: leaders.describe(task))

    report = partition_report(copier)
    assert (report.reason, report.is_stalled) == ("OpenTransaction", True)
    assert "producer 4000 (epoch 0) of cluster east" in report.message
    assert (report.source_offset, report.source_end_offset) == (STABLE, 140)
    assert (leaders.requests, task.changes) == ([1], [copier])


def test_records_of_an_open_transaction_count_as_lag_only_once_it_is_a_stall(task, monkeypatch):
    leaders, copier = Leaders(monkeypatch), held_copier(task)

    task.wait(DESCRIBED_AFTER_S - 1, each=lambda: leaders.describe(task))

    report = partition_report(copier)
    assert (report.reason, report.source_end_offset) == (None, STABLE)
    assert leaders.requests == []


def test_transactions_that_end_in_time_are_not_a_stall(task):
    """Each transaction is open for 20 s. When it ends, the next one is already open."""
    copier = held_copier(task)

    for offset in range(STABLE, STABLE + 30, 10):
        task.wait(20)
        fetch_response(task, copier, stable=offset + 10, end=offset + 50, records=10)
        task.copy(copier)

    assert copier.health.stalled is None


def test_the_stall_ends_with_the_transaction(task, monkeypatch):
    leaders, copier = Leaders(monkeypatch), held_copier(task)
    task.wait(each=lambda: leaders.describe(task))

    fetch_response(task, copier, stable=STABLE + 10, end=STABLE + 10, records=10)
    task.copy(copier)
    task.wait(2)

    report = partition_report(copier)
    assert (report.reason, report.source_end_offset, len(task.watch)) == (None, STABLE + 10, 0)


@pytest.mark.parametrize(
    ("response", "error"),
    [
        ({"error": 29}, "NotAuthorized"),
        (
            {"failure": UnsupportedBrokerError(cluster="east", feature="DescribeProducers", needs="2.8")},
            "UnsupportedBroker",
        ),
        ({"failure": NotAuthorizedError(cluster="east", operation="x", resource="y")}, "NotAuthorized"),
    ],
)
def test_an_open_transaction_is_a_stall_even_if_its_producer_cannot_be_described(
    task, monkeypatch, response, error
):
    """The request is repeated periodically, and the refusal is reported."""
    leaders, copier = Leaders(monkeypatch, **response), held_copier(task)

    task.wait(DESCRIBED_AFTER_S + DESCRIBE_AGAIN_S + 3, each=lambda: leaders.describe(task))

    report = partition_report(copier)
    assert (report.reason, leaders.requests, leaders.errors) == ("OpenTransaction", [1, 1], [error, error])
    assert "a transaction of cluster east is open from offset 100 on" in report.message


def test_many_open_transactions_are_described_in_several_requests(task, monkeypatch):
    leaders = Leaders(monkeypatch)
    copiers = [held_copier(task, number) for number in range(DESCRIBED_MAX + 50)]

    task.wait(each=lambda: leaders.describe(task))

    assert leaders.requests == [DESCRIBED_MAX, 50]
    assert all("producer 4000 " in partition_report(copier).message for copier in copiers)
