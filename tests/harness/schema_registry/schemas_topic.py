"""The `_schemas` topic in Confluent's record format.

It has JSON keys and values and one partition, and is compacted.
"""

import json
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

WAIT_S = 60.0
READ_S = 0.2
Pair = tuple[dict[str, Any], dict[str, Any] | None]


class SchemasTopic:
    """The store of one registry. A follower of a copy only reads it."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._bootstrap = bootstrap
        self._name = name
        self._is_at_end = False
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "schema-registry",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        self._consumer.assign([TopicPartition(name, 0, 0)])

    def create(self) -> None:
        """Creates the topic, unless it exists."""
        new = NewTopic(
            self._name, num_partitions=1, replication_factor=1, config={"cleanup.policy": "compact"}
        )
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        if self._name not in admin.list_topics(timeout=WAIT_S).topics:
            admin.create_topics([new])[self._name].result(WAIT_S)

    def append(self, pairs: Iterable[Pair]) -> None:
        """Returns once all *pairs* are acknowledged."""
        failed: list[object] = []
        for key, value in pairs:
            text = None if value is None else json.dumps(value).encode()
            while True:
                try:
                    self._producer.produce(
                        self._name,
                        key=json.dumps(key).encode(),
                        value=text,
                        partition=0,
                        on_delivery=lambda error, _: failed.append(error) if error else None,
                    )
                    break
                except BufferError:
                    self._producer.poll(1)
        if self._producer.flush(WAIT_S) or failed:
            raise OSError(f"records were not acknowledged: {failed}")

    def read_to_end(self) -> Iterable[Pair]:
        """Yields all records up to the current end."""
        while not self._is_at_end:
            yield from self.read()

    def read(self) -> Iterable[Pair]:
        """Yields the records that arrive within a short time."""
        for record in self._consumer.consume(num_messages=1000, timeout=READ_S):
            error = record.error()
            # There may be markers after the last record.
            self._is_at_end |= error is not None and error.code() == KafkaError._PARTITION_EOF
            if error is None and record.key() is not None:
                value = record.value()
                yield json.loads(record.key()), None if value is None else json.loads(value)
