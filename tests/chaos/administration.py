"""What administrators do to clusters while a flow copies: topics of the flow deleted or altered, rates limited, rights denied.

Rates and rights are given back after a while, at the latest by `give_back`.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from confluent_kafka import KafkaException

from mirrorflow_core.errors import ClusterError
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import HarnessError
from tests.integration.kafka.quotas import client_quota

# Deleting the offsets topic has no promise: everything may be copied again.
DELETED = ("mm2-claims.", "mm2-offset-map.", "mm2-offset-syncs.")
GROWN = "mm2-offsets."
PARTITIONS_MAX = 8
NOT_COMPACTED = {"cleanup.policy": "delete"}
# Below what the producers write, so that the flow falls behind, and enough for some commits.
BYTES_PER_S = 200_000.0
SETTINGS_OF_COPIES: tuple[Mapping[str, str], ...] = (
    {"message.timestamp.type": "LogAppendTime"},
    {"message.timestamp.type": "CreateTime"},
    {"max.message.bytes": "300000"},
    {"max.message.bytes": "1048588"},
    {"compression.type": "uncompressed"},
    {"compression.type": "producer"},
)
Change = Callable[[], AbstractContextManager[None]]


@dataclass(kw_only=True, slots=True)
class Administration:
    """The administrators of two clusters; *user* is the flow's on *west*, *copies* the topics that it writes there."""

    east: KafkaCluster
    west: KafkaCluster
    copies: tuple[str, ...]
    user: str
    _given: list[tuple[float, ExitStack]] = field(default_factory=list)

    def alter_internal(self, who: int) -> str:
        """Deletes, grows or alters a topic of the flow; returns what was done, "" if nothing."""
        done: list[tuple[str, Callable[[], None]]] = []
        for cluster in (self.east, self.west):
            for topic, partitions in sorted(cluster.topics().items()):
                if topic.startswith(DELETED):
                    done.append((f"{topic} deleted", partial(cluster.delete_topic, topic)))
                elif topic.startswith(GROWN) and partitions < PARTITIONS_MAX:
                    done += [
                        (f"{topic} grown", partial(cluster.add_partitions, topic, partitions + 1)),
                        (f"{topic} not compacted", partial(cluster.alter_topic, topic, NOT_COMPACTED)),
                    ]
        if not done:
            return ""
        what, act = done[who % len(done)]
        return what if self._is_done(act) else ""

    def alter_copy(self, who: int) -> str:
        """Changes a setting of a copy; returns what was done, "" if nothing."""
        topic, config = self._copy(who), SETTINGS_OF_COPIES[who % len(SETTINGS_OF_COPIES)]
        is_done = self._is_done(lambda: self.west.alter_topic(topic, config))
        return f"{topic}: {dict(config)}" if is_done else ""

    def limit_rate(self, who: int, away_s: float) -> str:
        """Limits what the flow may read or write for *away_s*; returns what was done, "" if nothing."""
        cluster, key = ((self.east, "consumer_byte_rate"), (self.west, "producer_byte_rate"))[who % 2]
        is_done = self._is_begun(lambda: client_quota(cluster, None, **{key: BYTES_PER_S}), away_s)
        return f"{key} of {cluster.name} for {away_s:.1f} s" if is_done else ""

    def deny_copy(self, who: int, away_s: float) -> str:
        """Denies the flow to write a copy for *away_s*; returns what was done, "" if nothing."""
        topic = self._copy(who)
        is_done = self._is_begun(lambda: self._denied(topic), away_s)
        return f"{topic} denied for {away_s:.1f} s" if is_done else ""

    def tick(self) -> None:
        """Gives back what is due."""
        for due_s, stack in list(self._given):
            if time.monotonic() >= due_s and self._is_done(stack.close):
                self._given.remove((due_s, stack))

    def give_back(self) -> None:
        """Gives back everything; all brokers are there."""
        while self._given:
            self._given[0][1].close()
            del self._given[0]

    def _copy(self, who: int) -> str:
        return self.copies[who // 7 % len(self.copies)]

    @contextmanager
    def _denied(self, topic: str) -> Iterator[None]:
        self.west.allow("WRITE", "TOPIC", topic, user=self.user, deny=True)
        yield
        self.west.remove_acl("WRITE", "TOPIC", topic, user=self.user, deny=True)

    def _is_begun(self, change: Change, away_s: float) -> bool:
        stack = ExitStack()
        is_done = self._is_done(lambda: stack.enter_context(change()))
        if is_done:
            self._given.append((time.monotonic() + away_s, stack))
        return is_done

    def _is_done(self, act: Callable[[], object]) -> bool:
        """Returns whether the cluster has done it; while a broker is being replaced, it may not."""
        try:
            act()
        except (KafkaException, ClusterError, HarnessError):
            return False
        return True
