"""Writes and reads records of a topic with Java clients. Tests treat the result as the true content of the topic.

`load` writes, `records` reads every record, and `digest` compares whole topics without their offsets. They use the
cluster's internal listener, independent of what the other listeners require. `tool_service` runs them.
"""

import itertools
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.harness.kafka.installation import write_properties
from tests.harness.kafka.tool_service import SERVICE, run_alone

# For a topic of records that are older than a week, which a broker would otherwise delete within five minutes.
FOREVER = {"retention.ms": "-1"}
_calls = itertools.count()


class JavaEndpoint(Protocol):
    """The cluster to which Java clients connect: a `KafkaCluster`, or a cluster that this harness has not started."""

    @property
    def home(self) -> Path:
        """Returns a folder for the files of tools."""

    def java_client(self, listener: str) -> dict[str, str]:
        """Returns the properties of a Java client."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A record as a Java consumer reads it.

    *timestamp* is in ms, and *timestamp_type* is CreateTime or LogAppendTime.
    """

    partition: int
    offset: int
    timestamp: int
    timestamp_type: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """The result of `load`. Of *records*, *aborted* are in aborted transactions."""

    records: int
    aborted: int
    seconds: float
    megabytes_per_s: float


def load(
    cluster: JavaEndpoint,
    topic: str,
    count: int,
    *,
    size_bytes: int = 100,
    codec: str = "none",
    batch_bytes: int = 16_384,
    linger_ms: int = 5,
    single_record_batches: bool = False,
    producer: Mapping[str, str] | None = None,
    **options: str | float | bool,
) -> Loaded:
    """Writes *count* records.

    *options* are those of Load.java: partition, keys, headers, timestamp_ms, abort_every ...
    """
    client = {
        "compression.type": codec,
        "batch.size": "0" if single_record_batches else str(batch_bytes),
        "linger.ms": "0" if single_record_batches else str(linger_ms),
        "buffer.memory": str(64 << 20),
    } | dict(producer or {})
    all_options = {"records": count, "size": size_bytes, **options}
    return Loaded(**json.loads(_run(cluster, "Load", topic, client, all_options)))


def records(
    cluster: JavaEndpoint, topic: str, *, isolation: str = "read_uncommitted", payload: str = "hex"
) -> list[Record]:
    """Returns every record of *topic*, by partition and offset.

    With *payload* "sha256", each key and value is a hash.
    """
    lines = _run(cluster, "Dump", topic, {}, {"mode": "records", "payload": payload, "isolation": isolation})
    records_ = [_record(json.loads(line)) for line in lines.splitlines()]
    return sorted(records_, key=lambda record: (record.partition, record.offset))


def digest(
    cluster: JavaEndpoint, topic: str, *, isolation: str = "read_uncommitted"
) -> dict[int, tuple[int, str]]:
    """Returns the number of records of each partition, and a SHA-256 over keys, values, headers and timestamps in
    order.
    """
    lines = _run(cluster, "Dump", topic, {}, {"mode": "digest", "isolation": isolation})
    parts = [json.loads(line) for line in lines.splitlines()]
    return {part["partition"]: (part["count"], part["sha256"]) for part in parts}


def _run(
    cluster: JavaEndpoint,
    main: str,
    topic: str,
    client: Mapping[str, str],
    options: Mapping[str, str | float | bool],
) -> str:
    folder = cluster.home
    stem = f"{main.lower()}-{next(_calls)}"
    properties = cluster.java_client("INTERNAL") | dict(client)
    file = write_properties(folder / f"{stem}.properties", properties)
    arguments = [f"client={file}", f"topic={topic}"]
    arguments += [
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in options.items()
    ]
    if threading.current_thread() is threading.main_thread() and not options.get("leave_open"):
        return SERVICE.ask(main, arguments)
    # A child process ends with the thread that started it. A program that leaves a transaction open ends its JVM.
    return run_alone(main, arguments, log=folder / f"{stem}.log")


def _record(line: dict[str, object]) -> Record:
    return Record(
        partition=int(str(line["partition"])),
        offset=int(str(line["offset"])),
        timestamp=int(str(line["timestamp"])),
        timestamp_type=str(line["timestamp_type"]),
        key=_bytes(line["key"]),
        value=_bytes(line["value"]),
        headers=tuple(
            (bytes.fromhex(name).decode(), _bytes(value)) for name, value in _pairs(line["headers"])
        ),
    )


def _bytes(text: object) -> bytes | None:
    return None if text is None else bytes.fromhex(str(text))


def _pairs(headers: object) -> list[tuple[str, object]]:
    return [(str(name), value) for name, value in headers] if isinstance(headers, list) else []
