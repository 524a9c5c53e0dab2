"""Compares source and target after a trial. A Java consumer reads both."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from operator import attrgetter

from tests.chaos.dimensions import Dimensions
from tests.chaos.judgement import Expected, Mark, difference, latest, marks, repetition
from tests.harness.kafka.broker import METADATA_WAIT_S, Broker
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.elections import LEADER
from tests.harness.kafka.log_files import logged_records
from tests.harness.kafka.tools import digest, records
from tests.harness.replicator import Replicator

LOSS_REASON = "SourceDataLost"

Positions = dict[Mark, set[tuple[int, int]]]


@dataclass(kw_only=True, slots=True)
class Comparison:
    """Compares the copies on *west* with the topics of *east* by the rules of `judgement`."""

    dimensions: Dimensions
    east: KafkaCluster
    west: KafkaCluster
    replicators: Sequence[Replicator]
    _stopped: set[tuple[str, int]] = field(default_factory=set)
    # The offsets and leader epochs at which each source partition ever had a record.
    _positions: dict[tuple[str, int], Positions] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(set))
    )

    def is_copied(self, topic: str) -> bool:
        """Returns whether no record is missing.

        It counts records, because markers take offsets only on the source.
        """
        if not self._expects_equal:
            # A full comparison takes many seconds. It therefore waits until no copier reports a lag.
            return not self._lags(topic) and not self.difference(topic)
        expected, copied = (
            {partition: count for partition, (count, _) in self._digest(side, topic).items()}
            for side in ("source", "target")
        )
        return all(copied.get(partition, 0) >= count for partition, count in expected.items())

    def _lags(self, topic: str) -> bool:
        """Returns whether a running copier reports a lag for a partition of *topic*."""
        return any(
            report["phase"] not in {"waiting", "stopped"} and report["lagRecords"] != 0
            for replicator in self.replicators
            if replicator.running
            for report in replicator.partitions()
            if report["topic"] == topic
        )

    def count(self, side: str, topic: str) -> int:
        """Returns the number of records that a consumer reads."""
        return sum(count for count, _ in self._digest(side, topic).values())

    def note_log(self, topic: str, broker: Broker) -> None:
        """Stores the records of *topic* in the log of a source broker that may lose them."""
        has_times = self.dimensions.has_times
        for partition in self.east.admin.list_topics(topic, timeout=METADATA_WAIT_S).topics[topic].partitions:
            positions = self._positions[topic, partition]
            for epoch, record in logged_records(broker, topic, partition):
                headers = tuple((name.decode(), _hashed(value)) for name, value in record.headers)
                time = record.timestamp if has_times else 0
                mark = time, _hashed(record.key), _hashed(record.value), headers
                positions[mark].add((record.offset, epoch))

    def difference(self, topic: str) -> str:
        """Returns a line for each partition whose copy differs, or "" if none does."""
        if self._expects_equal and self._digest("source", topic) == self._digest("target", topic):
            return ""
        source, target = self._marks("source", topic), self._marks("target", topic)
        has_bounds = self.dimensions.settings == "rolling" and self.dimensions.has_source_transactions
        committed = self._marks("source", topic, "read_committed") if has_bounds else source
        self._note_stopped(topic)
        if self.dimensions.is_truncated:
            self.note_log(topic, self.east.broker(LEADER))
        differences = []
        for partition in source.keys() | target.keys():
            copy = target.get(partition, [])
            expected = self._expected(
                source.get(partition, []),
                committed.get(partition, []),
                rewrites={
                    mark: len(positions) - 1
                    for mark, positions in self._positions[topic, partition].items()
                    if len(positions) > 1
                },
                is_stopped=(topic, partition) in self._stopped,
            )
            if self.dimensions.cleanup == "compact":
                if sentence := repetition(copy, expected.rewrites):
                    differences.append(f"{topic}-{partition}: {sentence}")
                copy = latest(copy)
            if sentence := difference(expected, copy):
                differences.append(f"{topic}-{partition}: {sentence}")
        return "\n  ".join(sorted(differences))

    @property
    def _expects_equal(self) -> bool:
        dimensions = self.dimensions
        return not dimensions.has_repeats and (
            (dimensions.cleanup, dimensions.settings, dimensions.truncation) == ("delete", "fixed", "never")
        )

    def _expected(
        self,
        source: Sequence[Mark],
        committed: Sequence[Mark],
        *,
        rewrites: Mapping[Mark, int],
        is_stopped: bool,
    ) -> Expected:
        dimensions = self.dimensions
        if dimensions.is_truncated:
            return Expected(
                least=[] if is_stopped else source,
                most=None,
                rewrites=rewrites,
                restarts=dimensions.truncation == "restart",
                repeats=dimensions.has_repeats,
            )
        if dimensions.cleanup == "compact":
            return Expected(least=latest(source), most=latest(source))
        least = committed if dimensions.settings == "rolling" else source
        return Expected(least=least, most=source, repeats=dimensions.has_repeats)

    def _note_stopped(self, topic: str) -> None:
        """Stores the partitions that stopped after a loss on the source, while a replicator runs."""
        running = [replicator for replicator in self.replicators if replicator.running]
        if not running or self.dimensions.truncation != "fail":
            return
        self._stopped = {stopped for stopped in self._stopped if stopped[0] != topic} | {
            (topic, report["partition"])
            for replicator in running
            for report in replicator.partitions()
            if (report["topic"], report["phase"], report.get("reason")) == (topic, "stopped", LOSS_REASON)
        }

    def _marks(self, side: str, topic: str, isolation: str = "") -> dict[int, list[Mark]]:
        """Returns the marks of each partition."""
        read = records(
            self._cluster(side),
            self._name(side, topic),
            payload="sha256",
            isolation=isolation or self._isolation(side),
        )
        has_times = self.dimensions.has_times
        return {
            partition: marks(list(group), has_times=has_times)
            for partition, group in groupby(read, key=attrgetter("partition"))
        }

    def _digest(self, side: str, topic: str) -> dict[int, tuple[int, str]]:
        return digest(self._cluster(side), self._name(side, topic), isolation=self._isolation(side))

    def _isolation(self, side: str) -> str:
        """Returns the isolation level with which each record is read once (see docs/exactly-once.md)."""
        if side == "target":
            return "read_committed" if self.dimensions.has_transactions else "read_uncommitted"
        return "read_uncommitted" if self.dimensions.settings == "rolling" else self.dimensions.isolation

    def _cluster(self, side: str) -> KafkaCluster:
        return self.east if side == "source" else self.west

    def _name(self, side: str, topic: str) -> str:
        return topic if side == "source" else f"{self.east.name}.{topic}"


def _hashed(part: bytes | None) -> bytes | None:
    """Hashes a record like `records` with payload "sha256"."""
    return None if part is None else sha256(part).digest()
