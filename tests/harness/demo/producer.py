"""A producer that writes to several topics until it is stopped.

Records have keys, headers and some null values, like those of an application. It counts acknowledged records, so that a
comparison at the end has the exact number.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from confluent_kafka import KafkaError, Message, Producer

from tests.harness.kafka.processes import HarnessError

TICK_S = 0.05
FLUSH_WAIT_S = 60.0
QUEUE_WAIT_S = 1.0
TOMBSTONE_EVERY = 50
KEYS = 5_000


@dataclass(kw_only=True, slots=True)
class SteadyProducer:
    """Writes *backlog* records to each of *topics* at once, and then *rate* records per second to each.

    *codec* is librdkafka's `compression.type`. The end of its context stops it without waiting; `stop` waits.
    """

    bootstrap: str
    topics: Sequence[str]
    backlog: int
    rate: int
    codec: str = "lz4"
    acknowledged: int = field(default=0, init=False)
    failure: KafkaError | None = field(default=None, init=False)
    _written: int = field(default=0, init=False)
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()

    def stop(self) -> None:
        """Stops the producer, and returns when all records are acknowledged.

        Raises `HarnessError` if a record was refused.
        """
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(FLUSH_WAIT_S)
        if self.failure is not None:
            raise HarnessError(f"The producer's record was refused: {self.failure.str()}.")

    def _run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "compression.type": self.codec,
                "enable.idempotence": True,
                "linger.ms": 20,
                "log_level": 2,
            }
        )
        self._write(producer, self.backlog)
        while not self._stopping.wait(TICK_S):
            self._write(producer, max(1, round(self.rate * TICK_S)))
        producer.flush(FLUSH_WAIT_S)

    def _write(self, producer: Producer, count: int) -> None:
        for _ in range(count):
            number = self._written
            self._written += 1
            for topic in self.topics:
                value = None if number % TOMBSTONE_EVERY == 0 else _order(number)
                while not self._stopping.is_set():
                    try:
                        producer.produce(
                            topic,
                            key=f"customer-{number % KEYS}",
                            value=value,
                            headers=[("number", str(number).encode())],
                            on_delivery=self._delivered,
                        )
                        break
                    except BufferError:
                        producer.poll(QUEUE_WAIT_S)
        producer.poll(0)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failure = error


def _order(number: int) -> str:
    return f'{{"order": {number}, "item": "coffee, ground", "amount": {number % 900 + 100}, "note": "{"-" * 80}"}}'
