"""The harness waits for the end offsets of the source, not only for the replicator's own report."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.harness.kafka.processes import HarnessError
from tests.harness.replicator import Replicator


class RunningProcess:
    """A stub of a running process."""

    running = True
    frozen = False

    def must_run(self) -> None:
        pass

    def tail(self) -> str:
        return "the end of its log"


@dataclass
class SourceStub:
    """A stub of a cluster. *requests* has the topic and isolation level of each request for end offsets."""

    ends: dict[str, dict[int, int]]
    requests: list[tuple[str, str]] = field(default_factory=list)

    def topics(self) -> dict[str, int]:
        return {topic: len(ends) for topic, ends in self.ends.items()}

    def end_offsets(self, topic: str, *, isolation: str = "read_uncommitted") -> dict[int, int]:
        self.requests.append((topic, isolation))
        return self.ends[topic]


def row_at(offset: int, topic: str = "t", **more: Any) -> dict[str, Any]:
    """A row of a process that reports that it is at the end."""
    row = {"topic": topic, "partition": 0, "sourceOffset": offset, "lagRecords": 0, "reachedStartEnd": True}
    return {**row, "phase": "copying", **more}


class ReplicatorStub(Replicator):
    """Returns each of *responses* once, and then the last one repeatedly."""

    responses: list[list[dict[str, Any]]]

    def partitions(self) -> list[dict[str, Any]]:
        return self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]


def replicator(
    source: SourceStub | None, *responses: list[dict[str, Any]], lines: dict[str, str] | None = None
) -> ReplicatorStub:
    stub = ReplicatorStub(form="standalone", files=({}, lines or {}), folder=Path(), source=source)  # type: ignore[arg-type]
    stub.child = RunningProcess()  # type: ignore[assignment]
    stub.responses = list(responses)
    return stub


def test_the_wait_ends_at_the_end_offset_of_the_source():
    """A process that has not fetched the newest records yet reports a lag of 0."""
    waiting = replicator(SourceStub({"t": {0: 10}}), [row_at(5)], [row_at(9)], [row_at(10)])

    waiting.wait_until_caught_up()

    assert [[row_at(10)]] == waiting.responses


def test_a_failed_wait_shows_the_end_of_the_log(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.harness.replicator.HANG_S", 0.2)

    with pytest.raises(HarnessError, match="the end of its log"):
        replicator(SourceStub({"t": {0: 10}}), [row_at(9)]).wait_until_caught_up()


def test_the_wait_requests_the_end_offsets_of_each_topic_once():
    """If later records were included, a wait under load would never end."""
    source = SourceStub({"t": {0: 10}, "u": {0: 1}})
    replicator(source, [row_at(9), row_at(1, "u")], [row_at(10), row_at(1, "u")]).wait_until_caught_up(
        partitions=2
    )

    assert [("t", "read_uncommitted"), ("u", "read_uncommitted")] == source.requests


@pytest.mark.parametrize("key", ["consumer.isolation.level", "source.consumer.isolation.level"])
def test_with_read_committed_the_wait_ends_at_the_last_stable_offset(key: str):
    """While a transaction is open, no record after this offset is copied."""
    source = SourceStub({"t": {0: 10}})
    replicator(source, [row_at(10)], lines={key: "read_committed"}).wait_until_caught_up()

    assert [("t", "read_committed")] == source.requests


def test_the_wait_uses_only_the_report_without_a_source_or_topic():
    """An mm2.properties has several sources, and a topic may have been deleted."""
    replicator(None, [row_at(5)]).wait_until_caught_up()
    replicator(SourceStub({}), [row_at(5)]).wait_until_caught_up()


def test_the_request_for_end_offsets_is_retried():
    """During a leader election the end offset is unknown."""

    class SourceDuringElection(SourceStub):
        def end_offsets(self, topic: str, *, isolation: str = "read_uncommitted") -> dict[int, int]:
            if not self.requests:
                self.requests.append((topic, isolation))
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            return super().end_offsets(topic, isolation=isolation)

    waiting = replicator(SourceDuringElection({"t": {0: 10}}), [row_at(5)], [row_at(9)], [row_at(10)])
    waiting.wait_until_caught_up()

    assert [[row_at(10)]] == waiting.responses
