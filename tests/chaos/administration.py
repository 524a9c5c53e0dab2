"""Administrators delete or alter the flow's topics, limit rates and deny permissions while the flow copies.

Limits and denials are removed after a while, and at the latest by `restore`.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from confluent_kafka import KafkaException

from mirrorflow_core.errors import ClusterError
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import HarnessError
from tests.integration.kafka.quotas import remove_quota, set_quota

# The offsets topic is not deleted, because all records might then be copied again.
DELETED = ("mm2-claims.", "mm2-offset-map.", "mm2-offset-syncs.")
EXTENDED = "mm2-offsets."
PARTITIONS_MAX = 8
NOT_COMPACTED = {"cleanup.policy": "delete"}
# Below the rate of the producers, so that the lag grows, but enough for some commits.
BYTES_PER_S = 200_000.0
COPY_CONFIGS: tuple[Mapping[str, str], ...] = (
    {"message.timestamp.type": "LogAppendTime"},
    {"message.timestamp.type": "CreateTime"},
    {"max.message.bytes": "300000"},
    {"max.message.bytes": "1048588"},
    {"compression.type": "uncompressed"},
    {"compression.type": "producer"},
)
Change = Callable[[], object]


@dataclass(kw_only=True, slots=True)
class Administration:
    """The administrators of two clusters. *user* is the flow's user on *west*, and *copies* are its target topics."""

    east: KafkaCluster
    west: KafkaCluster
    copies: tuple[str, ...]
    user: str
    _pending: list[tuple[float, Change]] = field(default_factory=list)  # when the removal of a change is due

    def alter_internal(self, choice: int) -> str:
        """Deletes, extends or alters an internal topic. Returns a description, or "" if nothing was done."""
        changes: list[tuple[str, Callable[[], None]]] = []
        for cluster in (self.east, self.west):
            for topic, partitions in sorted(cluster.topics().items()):
                if topic.startswith(DELETED):
                    changes.append((f"{topic} deleted", partial(cluster.delete_topic, topic)))
                elif topic.startswith(EXTENDED) and partitions < PARTITIONS_MAX:
                    changes += [
                        (
                            f"{topic} with one more partition",
                            partial(cluster.add_partitions, topic, partitions + 1),
                        ),
                        (f"{topic} no longer compacted", partial(cluster.alter_topic, topic, NOT_COMPACTED)),
                    ]
        if not changes:
            return ""
        description, act = changes[choice % len(changes)]
        return description if self._succeeds(act) else ""

    def alter_copy(self, choice: int) -> str:
        """Changes a setting of a target topic. Returns a description, or "" if it could not be changed."""
        topic, config = self._copy(choice), COPY_CONFIGS[choice % len(COPY_CONFIGS)]
        is_done = self._succeeds(lambda: self.west.alter_topic(topic, config))
        return f"{topic}: {dict(config)}" if is_done else ""

    def limit_rate(self, choice: int, duration_s: float) -> str:
        """Limits the rate at which the flow reads or writes for *duration_s*. Returns a description, or "" on
        failure.
        """
        cluster, key = ((self.east, "consumer_byte_rate"), (self.west, "producer_byte_rate"))[choice % 2]
        is_done = self._apply_for_a_while(
            partial(set_quota, cluster, None, **{key: BYTES_PER_S}),
            partial(remove_quota, cluster, None, key),
            duration_s,
        )
        return f"{key} of {cluster.name} for {duration_s:.1f} s" if is_done else ""

    def deny_copy(self, choice: int, duration_s: float) -> str:
        """Denies the flow to write a target topic for *duration_s*. Returns a description, or "" on failure."""
        topic = self._copy(choice)
        deny, remove = (
            partial(change, "WRITE", "TOPIC", topic, user=self.user, deny=True)
            for change in (self.west.allow, self.west.remove_acl)
        )
        is_done = self._apply_for_a_while(deny, remove, duration_s)
        return f"{topic} denied for {duration_s:.1f} s" if is_done else ""

    def tick(self) -> None:
        """Removes the limits and denials that are due."""
        for change in list(self._pending):
            due_s, remove = change
            if time.monotonic() >= due_s and self._succeeds(remove):
                self._pending.remove(change)

    def restore(self) -> None:
        """Removes all limits and denials. All brokers must be available."""
        while self._pending:
            self._pending[0][1]()
            del self._pending[0]

    def _copy(self, choice: int) -> str:
        return self.copies[choice // 7 % len(self.copies)]

    def _apply_for_a_while(self, apply: Change, remove: Change, duration_s: float) -> bool:
        is_done = self._succeeds(apply)
        # The change counts even if its request failed, because a request without a response may have been executed.
        self._pending.append((time.monotonic() + duration_s, remove))
        return is_done

    def _succeeds(self, act: Change) -> bool:
        """Returns whether the cluster has made the change. It may refuse it during an election, or not respond."""
        try:
            act()
        except (KafkaException, ClusterError, HarnessError, TimeoutError):
            return False
        return True
