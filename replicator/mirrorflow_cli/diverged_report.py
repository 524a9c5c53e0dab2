"""Shows a diverged tail: as text and as a JSON object. Keys are shown, values never."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mirrorflow_cli.output import rfc3339
from mirrorflow_core.switchover.diverged_tail import DivergedTail, TailCount, TailState
from mirrorflow_replicator.switchover.diverged_tail import CountedTail, TailSurvey
from mirrorflow_replicator.switchover.tail_keeping import WrittenTail

COLUMNS: Final = ("PARTITION", "STATE", "OFFSETS", "RECORDS", "BYTES", "FIRST", "LAST", "KEYS")
DISPENSABLE: Final = ("BYTES", "KEYS", "FIRST")
KEY_LENGTH_MAX: Final = 40
PRODUCERS_SHOWN_MAX: Final = 20
_WHAT_FOLLOWS: Final[Mapping[TailState, str]] = {
    TailState.RECREATED: "the topic was deleted and created again, so its offsets are not those of the copy; compare both sides yourself",
    TailState.UNDECIDED: "copying had stopped before, or its writer could not be fenced, so it is not known where the tail begins",
    TailState.MISSING: "it no longer exists on the old side, so there is nothing to keep",
    TailState.LOST: "the old side has lost {lost} offsets that were copied, and has no tail",
    TailState.REWRITTEN: "the old side has lost {lost} offsets that were copied, and has other records in their place, which are in the tail",
}


def rows_of(survey: TailSurvey) -> list[tuple[str, ...]]:
    """Returns a row for each partition that has a tail, or lacks what it should have."""
    return [_row(tail) for tail in survey.tails if tail.count.records or _is_notable(tail.tail)]


def _row(counted: CountedTail) -> tuple[str, ...]:
    tail, count = counted.tail, counted.count
    keys = f"{key_text(count.first_key)} .. {key_text(count.last_key)}" if count.records else ""
    return (
        str(tail.partition),
        tail.state.value,
        f"{tail.start}..{tail.end}" if not tail.is_empty else "",
        str(count.records),
        str(count.size_bytes),
        time_text(count.first_ms) or "",
        time_text(count.last_ms) or "",
        keys,
    )


def sentences_of(survey: TailSurvey, old_side: str) -> list[str]:
    """Returns what the tails are, and what a person has to know of them."""
    count, partitions = survey.count, len(survey.filled)
    if count.records:
        first_time, last_time = time_text(count.first_ms), time_text(count.last_ms)
        times = f", from {first_time} to {last_time}" if first_time and last_time else ""
        first = (
            f"{count.records} records of {partitions} partitions ({count.size_bytes} bytes{times}) never crossed from {old_side}, "
            f"as switchover {survey.switchover} has ended its flow. {_producers(count)}"
        )
    else:
        first = f"No record was left on {old_side}: switchover {survey.switchover} has no diverged tail."
    sentences = [first]
    sentences += [
        f"{tail.partition}: {_WHAT_FOLLOWS[tail.tail.state].format(lost=tail.tail.lost)}."
        for tail in survey.tails
        if tail.tail.state in _WHAT_FOLLOWS
    ]
    sentences += [
        f"{tail.partition}: retention has deleted the first {tail.tail.gone} offsets of the tail."
        for tail in survey.tails
        if tail.tail.gone
    ]
    if count.aborted:
        sentences.append(f"{count.aborted} records of aborted transactions are no part of the tail.")
    sentences += [f"Not decided yet: {transaction}." for transaction in survey.transactions]
    return sentences


def _producers(count: TailCount) -> str:
    ids = sorted(count.producer_ids)
    if not ids:
        return "Their producers have no ids."
    more = f" and {len(ids) - PRODUCERS_SHOWN_MAX} more" if len(ids) > PRODUCERS_SHOWN_MAX else ""
    return f"Producer ids: {', '.join(map(str, ids[:PRODUCERS_SHOWN_MAX]))}{more}."


def written_sentences(written: Sequence[WrittenTail], how: str) -> list[str]:
    """Returns a sentence for each topic of the new side that has records of the tail; *how* is the verb."""
    topics: dict[str, tuple[int, int]] = {}
    for tail in written:
        records, added = topics.get(tail.target.topic, (0, 0))
        topics[tail.target.topic] = records + tail.records, added + tail.added
    return [
        f"{records} records are {how} {topic} ({added} now)."
        for topic, (records, added) in sorted(topics.items())
    ]


def survey_json(survey: TailSurvey, *, old_side: str, new_side: str) -> dict[str, Any]:
    """Returns the tails for JSON."""
    return {
        "switchover": survey.switchover,
        "left": old_side,
        "active": new_side,
        **_count_json(survey.count),
        "partitions": [_tail_json(tail) for tail in survey.tails],
        "openTransactions": [
            {
                "topic": transaction.partition.topic,
                "partition": transaction.partition.partition,
                "startOffset": transaction.start_offset,
                "producerId": transaction.producer_id,
                "transactionalId": transaction.transactional_id,
            }
            for transaction in survey.transactions
        ],
    }


def _tail_json(counted: CountedTail) -> dict[str, Any]:
    tail = counted.tail
    return {
        "topic": tail.partition.topic,
        "partition": tail.partition.partition,
        "state": tail.state.value,
        "start": tail.start,
        "end": tail.end,
        "gone": tail.gone,
        "lost": tail.lost,
        **_count_json(counted.count),
        "firstKey": None if counted.count.first_key is None else key_text(counted.count.first_key),
        "lastKey": None if counted.count.last_key is None else key_text(counted.count.last_key),
    }


def _count_json(count: TailCount) -> dict[str, Any]:
    return {
        "records": count.records,
        "bytes": count.size_bytes,
        "abortedRecords": count.aborted,
        "firstTimestamp": time_text(count.first_ms),
        "lastTimestamp": time_text(count.last_ms),
        "producerIds": sorted(count.producer_ids),
    }


def written_json(written: Sequence[WrittenTail]) -> list[dict[str, Any]]:
    """Returns what was written for JSON."""
    return [
        {
            "topic": tail.source.topic,
            "partition": tail.source.partition,
            "to": tail.target.topic,
            "records": tail.records,
            "added": tail.added,
        }
        for tail in written
    ]


def key_text(key: bytes | None) -> str:
    """Returns *key* as text, or in hexadecimal if it is none; shortened."""
    if key is None:
        return "(null)"
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    shown = text if text.isprintable() and (text or not key) else f"0x{key.hex()}"
    return shown if len(shown) <= KEY_LENGTH_MAX else f"{shown[: KEY_LENGTH_MAX - 1]}…"


def time_text(time_ms: int | None) -> str | None:
    """Returns a time as RFC 3339 in UTC; None for none, and after the year 9999."""
    if time_ms is None:
        return None
    try:
        return rfc3339(time_ms)
    except (OverflowError, ValueError, OSError):
        return None


def _is_notable(tail: DivergedTail) -> bool:
    return tail.state in _WHAT_FOLLOWS or bool(tail.gone)


def recreate_commands(
    topics: Sequence[str], *, bootstrap_servers: str, flow: str, start_back: str
) -> list[str]:
    """Returns the commands with which a person creates *topics* of the old side again; *flow* is the one back."""
    deletes = [
        f"kafka-topics.sh --bootstrap-server {bootstrap_servers} --command-config admin.properties --delete --topic {name}"
        for name in sorted(set(topics))
    ]
    # Other topics of the flow hold records that the forward flow has copied from there; the seed continues after them.
    return [*deletes, start_back, f"mirrorflow seed -f {flow}.yaml --foreign-records accept"]
