"""A pair whose source is killed while its flow runs and before all records are copied."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from mirrorflow_cli.run_progress import read_progress
from tests.harness.kafka.processes import free_port, wait_until
from tests.integration.kafka.groups import group_offsets, put_group
from tests.integration.kafka.mirror_pairs import APP, Pair, Sides
from tests.integration.kafka.running import RunningCommand

COPIED, LOST, READ = 60, 25, 40


class QuickPair(Pair):
    """A pair whose groups are translated within a second."""

    def _flow(self, source: str, target: str) -> dict[str, Any]:
        flow = super()._flow(source, target)
        intervals = ("emit.checkpoints", "sync.group.offsets", "refresh.groups")
        config = {f"{name}.interval.seconds": "1" for name in intervals}
        flow["spec"]["connectors"]["checkpoint"] = {"config": config}
        return flow


@dataclass(frozen=True, slots=True, kw_only=True)
class LostSource:
    """A pair whose cluster east was killed.

    COPIED records are on west, LOST records are only on east, and the group has read READ records.
    """

    pair: QuickPair
    flow: RunningCommand  # runs from east to west
    url: str  # address of its progress


@contextmanager
def lost_source(
    sides: Sides, folder: Path, *, before: Callable[[str], None] = lambda _: None
) -> Iterator[LostSource]:
    """Runs the flow until after its source was killed. *before* is called with its URL just before the kill."""
    east, west, pair = sides["east"], sides["west"], QuickPair(sides, folder)
    port, own = free_port(), folder / "forward"
    url = f"http://127.0.0.1:{port}"
    own.mkdir()
    flow = RunningCommand(pair.flow_file("east-to-west"), own, "--secrets", folder, "--http-port", str(port))
    write(pair, "east", range(COPIED))
    put_group(east, pair.group, {(pair.topic, 0): READ})
    with flow:
        wait_until("the records are copied", lambda: west.total_end_offset(pair.topic) == COPIED)
        wait_until("the group follows", lambda: bool(group_offsets(west, pair.group)))
        west.allow("WRITE", "TOPIC", pair.topic, deny=True)
        write(pair, "east", range(COPIED, COPIED + LOST))
        wait_until("the flow has seen their end", lambda: _source_end(url) == COPIED + LOST)
        before(url)
        east.broker(1).kill()
        west.remove_acl("WRITE", "TOPIC", pair.topic, deny=True)
        yield LostSource(pair=pair, flow=flow, url=url)


def write(pair: Pair, member: str, numbers: range) -> None:
    """Writes *numbers* with acks=all, and returns when all are acknowledged."""
    errors: list[Any] = []
    producer = Producer(pair.sides[member].client("SASL_PLAINTEXT", user=APP))
    for number in numbers:
        producer.produce(pair.topic, str(number).encode(), on_delivery=lambda error, _: errors.append(error))
    assert not producer.flush(30)
    assert errors == [None] * len(numbers)


def _source_end(url: str) -> int | None:
    """Returns the end offset of the source that the flow at *url* has read."""
    progress = read_progress(url)
    rows = () if progress is None else progress.partitions
    return next((row["sourceEndOffset"] for row in rows), None)
