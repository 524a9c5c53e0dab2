"""Replays the segments of a partition's event log (`mirrorflow_core.copying.event_log`), without payloads.

python -m tests.harness.replay FILE    each segment, and where the replayed state differs from the recorded one
"""

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mirrorflow_core.copying.batch_packer import Packer, _Encoded
from mirrorflow_core.copying.event_log import from_json, to_json
from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.copying.session import CopySession
from mirrorflow_core.errors import CorruptRecordsError, PartitionError
from mirrorflow_core.wire.batch import Batch
from mirrorflow_core.wire.fetch import FetchKey, PartitionFetchResponse
from mirrorflow_core.writer.stream import Span, Stream

Event = tuple[Any, ...]
# The results of a packer, which follow the event in which it was called.
RESULTS = {"split", "corrupt", "cut_off", "damaged", "packed"}
OF_SESSION = {"plain_age_limit_ms", "is_log_append_time"}  # other partitions and the task also change them
_KEY = FetchKey(b"", 0)  # the key of fetch responses, which nothing reads


class ReplayedPacker(Packer):
    """A packer without payloads that returns the recorded results."""

    __slots__ = ("results",)

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.raw = self.coalesced = self.reencoded = 0
        for name, value in state.items():
            setattr(self, name, value)
        self._queue = deque((_batch(header), *rest) for header, *rest in state["_queue"])
        self._outbox = deque(_Encoded(bytearray(), span, 0) for span in state["_outbox"])
        self.results: deque[Event] = deque()

    def split(self, records: memoryview) -> Sequence[Batch]:
        kind, value = self.results.popleft()
        if kind == "corrupt":
            raise CorruptRecordsError(value)
        if kind == "cut_off":
            self.results.append((kind, value))
            return ()
        return [_batch(header) for header in value]

    def verify_skipped(self, batch: Batch) -> None:
        if self.results and self.results[0] == ("damaged", batch.base_offset):
            self.results.popleft()
            raise self._corrupt(batch, "its checksum does not hold")

    def first_size_bytes(self, records: memoryview) -> int:
        return int(self.results.popleft()[1])

    def next(self, stream: Stream) -> Any:
        kind, result, needs_transaction, queued, encoded, queued_bytes = self.results.popleft()
        assert kind == "packed"
        self.needs_transaction = needs_transaction
        span = result if isinstance(result, Span) else None
        while len(self._queue) > queued:
            batch, next_offset, skipped = self._queue.popleft()
            if span is not None and next_offset > span.base_offset:
                continue
            if span is None and encoded:
                continue
            epoch = batch.leader_epoch
            for later in skipped:
                stream.pass_over(later.first_offset, epoch)
                epoch = later.epoch
            stream.pass_over(next_offset, epoch)
        spans = [encoded_batch.span for encoded_batch in self._outbox][-encoded:] if encoded else []
        missing = [Span(0, 0, 0, 0, 0, 0)] * (encoded - len(spans))
        self._outbox = deque(_Encoded(bytearray(), span, 0) for span in (*spans, *missing))
        self.queued_bytes = queued_bytes
        if isinstance(result, PartitionError):
            raise result
        return None if span is None else (b"", span)


def _batch(header: Sequence[Any]) -> Batch:
    *fields, data, size_bytes = header
    return Batch._make((*fields, memoryview(data), size_bytes))


def replayed(document: Mapping[str, Any], segment: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON form of the state after the events of *segment*, whose `after` is the recorded state."""
    session: CopySession = from_json(document["session"])
    state = from_json(segment["before"])
    packer = ReplayedPacker(state.pop("packer"))
    copier = PartitionCopier(from_json(document["source"]), document["target_topic"], session, packer)
    session.plain_age_limit_ms = state.pop("plain_age_limit_ms")
    _set_log_append_time(copier, is_known=state.pop("is_log_append_time"))
    for name, value in state.items():
        setattr(copier, name, value)
    events = [from_json(event) for event in segment["events"]]
    packer.results.extend(event for event in events if event[0] in RESULTS)
    for event in events:
        if event[0] not in RESULTS:
            _repeat(copier, event)
    return {name: to_json(value) for name, value in copier.state_values().items()}


def _repeat(copier: PartitionCopier, event: Event) -> None:
    match event:
        case ("fetched", head, size_bytes, tail, asked_offset):
            records = memoryview(bytes(size_bytes))
            response = PartitionFetchResponse._make((_KEY, *head, records, *tail))
            copier.fetched(response, asked_offset)
        case ("next_batch", now_ms, request_bytes, age_limit_ms):
            copier.session.plain_age_limit_ms = age_limit_ms
            copier.next_batch(now_ms, request_bytes)
        case ("acknowledged", base_offset, append_time_ms, now_ms, age_limit_ms, is_known):
            copier.session.plain_age_limit_ms = age_limit_ms
            if append_time_ms != -1:
                _set_log_append_time(copier, is_known=is_known)
            copier.acknowledged(base_offset, append_time_ms, now_ms)
        case (name, values, keywords):
            getattr(copier, name)(*values, **keywords)


def _set_log_append_time(copier: PartitionCopier, *, is_known: bool) -> None:
    topics = copier.session.log_append_time_topics
    (topics.add if is_known else topics.discard)(copier.target_topic)


def differences(document: Mapping[str, Any]) -> list[str]:
    """Returns the differences between a replay and the recorded states; none if they are equal."""
    result: list[str] = []
    for number, segment in enumerate(document["segments"]):
        state, after = replayed(document, segment), dict(segment["after"]["items"])
        result += [
            f"segment {number}: {difference}"
            for name in after
            if name not in OF_SESSION
            for difference in _differences(name, state[name], after[name])
        ]
    return result


def _differences(name: str, replayed_value: Any, recorded: Any) -> Iterator[str]:
    """Yields the fields of *name* whose JSON forms differ."""
    if replayed_value == recorded:
        return
    forms = replayed_value, recorded
    if all(isinstance(form, dict) and "fields" in form for form in forms):
        for field, value in recorded["fields"].items():
            yield from _differences(f"{name}.{field}", replayed_value["fields"].get(field), value)
    else:
        yield f"{name} is {from_json(replayed_value)!r}, was {from_json(recorded)!r}"


def main() -> int:
    """Replays the file that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.replay", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("file", type=argparse.FileType(), metavar="FILE", help="mirrorflow-replays-*/*.json")
    document = json.load(parser.parse_args().file)
    for number, segment in enumerate(document["segments"]):
        print(f"segment {number}: {len(segment['events'])} events")
        for event in segment["events"]:
            print("  ", *from_json(event))
    result = differences(document)
    print(*result, sep="\n")
    return 1 if result else 0


if __name__ == "__main__":
    sys.exit(main())
