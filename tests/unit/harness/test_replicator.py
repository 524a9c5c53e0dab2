"""The harness's waits end when what they wait for has happened, whatever a process thinks of it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.harness.kafka.processes import HarnessError
from tests.harness.replicator import Replicator


class Alive:
    """Stands for a process that runs."""

    running = True
    frozen = False

    def must_run(self) -> None:
        pass

    def tail(self) -> str:
        return "the end of its log"


@dataclass
class Source:
    """Stands for a cluster; counts what it is asked."""

    ends: dict[str, dict[int, int]]
    asked: list[tuple[str, str]] = field(default_factory=list)

    def topics(self) -> dict[str, int]:
        return {topic: len(ends) for topic, ends in self.ends.items()}

    def end_offsets(self, topic: str, *, isolation: str = "read_uncommitted") -> dict[int, int]:
        self.asked.append((topic, isolation))
        return self.ends[topic]


def said(offset: int, topic: str = "t", **more: Any) -> dict[str, Any]:
    """A row of a process that believes to be at the end."""
    row = {"topic": topic, "partition": 0, "sourceOffset": offset, "lagRecords": 0, "reachedStartEnd": True}
    return {**row, "phase": "copying", **more}


class Talking(Replicator):
    """Says one answer after the other, and then the last for ever."""

    answers: list[list[dict[str, Any]]]

    def partitions(self) -> list[dict[str, Any]]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def replicator(
    source: Source | None, *answers: list[dict[str, Any]], lines: dict[str, str] | None = None
) -> Talking:
    made = Talking(form="standalone", files=({}, lines or {}), folder=Path(), source=source)  # type: ignore[arg-type]
    made.child = Alive()  # type: ignore[assignment]
    made.answers = list(answers)
    return made


def test_caught_up_is_at_the_end_that_the_source_has():
    """A process that has not heard yet of what was just written says that it lacks nothing."""
    waiting = replicator(Source({"t": {0: 10}}), [said(5)], [said(9)], [said(10)])

    waiting.wait_until_caught_up()

    assert [[said(10)]] == waiting.answers


def test_failed_wait_reports_the_end_of_the_log(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.harness.replicator.HANG_S", 0.2)

    with pytest.raises(HarnessError, match="the end of its log"):
        replicator(Source({"t": {0: 10}}), [said(9)]).wait_until_caught_up()


def test_the_source_is_asked_once_for_each_topic():
    """What is written after the call is another wait's, or a wait under load would never end."""
    source = Source({"t": {0: 10}, "u": {0: 1}})
    replicator(source, [said(9), said(1, "u")], [said(10), said(1, "u")]).wait_until_caught_up(partitions=2)

    assert [("t", "read_uncommitted"), ("u", "read_uncommitted")] == source.asked


@pytest.mark.parametrize("key", ["consumer.isolation.level", "source.consumer.isolation.level"])
def test_read_committed_has_its_own_end(key: str):
    """The last stable offset: behind it nothing is copied while a transaction is open."""
    source = Source({"t": {0: 10}})
    replicator(source, [said(10)], lines={key: "read_committed"}).wait_until_caught_up()

    assert [("t", "read_committed")] == source.asked


def test_without_a_source_or_without_the_topic_the_process_alone_is_asked():
    """The mm2 form has many sources, and a topic may be gone."""
    replicator(None, [said(5)]).wait_until_caught_up()
    replicator(Source({}), [said(5)]).wait_until_caught_up()


def test_a_source_that_does_not_answer_is_asked_again():
    """While a leader is elected nothing is known, and nothing is assumed."""

    class Electing(Source):
        def end_offsets(self, topic: str, *, isolation: str = "read_uncommitted") -> dict[int, int]:
            if not self.asked:
                self.asked.append((topic, isolation))
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            return super().end_offsets(topic, isolation=isolation)

    waiting = replicator(Electing({"t": {0: 10}}), [said(5)], [said(9)], [said(10)])
    waiting.wait_until_caught_up()

    assert [[said(10)]] == waiting.answers
