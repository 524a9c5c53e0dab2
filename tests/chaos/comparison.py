"""Both sides of a trial, read by a Java consumer and held against each other."""

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

LOST = "SourceDataLost"

Places = dict[Mark, set[tuple[int, int]]]


@dataclass(kw_only=True, slots=True)
class Comparison:
    """What *west* must hold of the topics of *east* after a trial of *dimensions*; see `judgement`."""

    dimensions: Dimensions
    east: KafkaCluster
    west: KafkaCluster
    replicators: Sequence[Replicator]
    _stopped: set[tuple[str, int]] = field(default_factory=set)
    # Of each partition, the offsets and leader epochs at which the source has had a record.
    _places: dict[tuple[str, int], Places] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(set))
    )

    def is_copied(self, topic: str) -> bool:
        """Whether nothing is missing; not by offsets, as markers take some on the source and none on the target."""
        if not self._expects_equal:
            # A whole comparison takes many seconds: not while the copiers themselves know that something is missing.
            return not self._lags(topic) and not self.difference(topic)
        want, found = (
            {partition: count for partition, (count, _) in self._digest(side, topic).items()}
            for side in ("source", "target")
        )
        return all(found.get(partition, 0) >= count for partition, count in want.items())

    def _lags(self, topic: str) -> bool:
        """Whether a copier that is at work on a partition of *topic* knows of records that it has not copied yet."""
        return any(
            said["phase"] not in {"waiting", "stopped"} and said["lagRecords"] != 0
            for one in self.replicators
            if one.running
            for said in one.partitions()
            if said["topic"] == topic
        )

    def count(self, side: str, topic: str) -> int:
        """Records that a reader sees."""
        return sum(count for count, _ in self._digest(side, topic).values())

    def note_log(self, topic: str, broker: Broker) -> None:
        """Remember which records of *topic* are in the log of a broker of the source, which may lose them."""
        has_times = self.dimensions.has_times
        for partition in self.east.admin.list_topics(topic, timeout=METADATA_WAIT_S).topics[topic].partitions:
            places = self._places[topic, partition]
            for epoch, record in logged_records(broker, topic, partition):
                headers = tuple((name.decode(), _hashed(value)) for name, value in record.headers)
                time = record.timestamp if has_times else 0
                mark = time, _hashed(record.key), _hashed(record.value), headers
                places[mark].add((record.offset, epoch))

    def difference(self, topic: str) -> str:
        """A line for each partition that holds other records than it should; "" if there is none."""
        if self._expects_equal and self._digest("source", topic) == self._digest("target", topic):
            return ""
        source, target = self._marks("source", topic), self._marks("target", topic)
        has_bounds = self.dimensions.settings == "rolling" and self.dimensions.has_source_transactions
        committed = self._marks("source", topic, "read_committed") if has_bounds else source
        self._note_stopped(topic)
        if self.dimensions.is_truncated:
            self.note_log(topic, self.east.broker(LEADER))
        found = []
        for partition in source.keys() | target.keys():
            copy = target.get(partition, [])
            expected = self._expected(
                source.get(partition, []),
                committed.get(partition, []),
                again={
                    mark: len(places) - 1
                    for mark, places in self._places[topic, partition].items()
                    if len(places) > 1
                },
                is_stopped=(topic, partition) in self._stopped,
            )
            if self.dimensions.cleanup == "compact":
                if sentence := repetition(copy, expected.again):
                    found.append(f"{topic}-{partition}: {sentence}")
                copy = latest(copy)
            if sentence := difference(expected, copy):
                found.append(f"{topic}-{partition}: {sentence}")
        return "\n  ".join(sorted(found))

    @property
    def _expects_equal(self) -> bool:
        one = self.dimensions
        return not one.has_repeats and (
            (one.cleanup, one.settings, one.truncation) == ("delete", "fixed", "never")
        )

    def _expected(
        self,
        source: Sequence[Mark],
        committed: Sequence[Mark],
        *,
        again: Mapping[Mark, int],
        is_stopped: bool,
    ) -> Expected:
        one = self.dimensions
        if one.is_truncated:
            return Expected(
                least=[] if is_stopped else source,
                most=None,
                again=again,
                restarts=one.truncation == "restart",
                repeats=one.has_repeats,
            )
        if one.cleanup == "compact":
            return Expected(least=latest(source), most=latest(source))
        least = committed if one.settings == "rolling" else source
        return Expected(least=least, most=source, repeats=one.has_repeats)

    def _note_stopped(self, topic: str) -> None:
        """Which partitions a replicator has stopped for the loss of source records; what was said last, once none runs."""
        running = [one for one in self.replicators if one.running]
        if not running or self.dimensions.truncation != "fail":
            return
        self._stopped = {one for one in self._stopped if one[0] != topic} | {
            (topic, said["partition"])
            for one in running
            for said in one.partitions()
            if (said["topic"], said["phase"], said.get("reason")) == (topic, "stopped", LOST)
        }

    def _marks(self, side: str, topic: str, isolation: str = "") -> dict[int, list[Mark]]:
        """Of each partition."""
        found = records(
            self._cluster(side),
            self._name(side, topic),
            payload="sha256",
            isolation=isolation or self._isolation(side),
        )
        has_times = self.dimensions.has_times
        return {
            partition: marks(list(group), has_times=has_times)
            for partition, group in groupby(found, key=attrgetter("partition"))
        }

    def _digest(self, side: str, topic: str) -> dict[int, tuple[int, str]]:
        return digest(self._cluster(side), self._name(side, topic), isolation=self._isolation(side))

    def _isolation(self, side: str) -> str:
        """What is written inside transactions is seen once with read_committed alone: see docs/exactly-once.md."""
        if side == "target":
            return "read_committed" if self.dimensions.has_transactions else "read_uncommitted"
        return "read_uncommitted" if self.dimensions.settings == "rolling" else self.dimensions.isolation

    def _cluster(self, side: str) -> KafkaCluster:
        return self.east if side == "source" else self.west

    def _name(self, side: str, topic: str) -> str:
        return topic if side == "source" else f"{self.east.name}.{topic}"


def _hashed(part: bytes | None) -> bytes | None:
    """As `records` has it with payload "sha256"."""
    return None if part is None else sha256(part).digest()
