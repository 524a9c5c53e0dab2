"""Reports what an unplanned switchover loses, for its user and as JSON."""

from datetime import UTC, datetime
from typing import Any

from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.states import SwitchoverState


def loss_sentences(record: SwitchoverRecord) -> list[str]:
    """Returns what is known to be lost, unless the reason of *record* says it; [] for other types."""
    loss = record.known_loss
    if loss is None or record.state is SwitchoverState.REFUSED:
        return []
    return [loss.sentence(record.source)]


def degraded_sentence(record: SwitchoverRecord) -> str:
    """Returns how an unplanned switchover stands that has led applications to the target."""
    reason = f" {record.reason}" if record.reason else ""
    return (
        f"{record.to} is the active member of {record.pair}, without {record.source}.{reason} Before {record.source} is used again, it "
        f"must be reconciled: it may have records that never crossed. `mirrorflow diverged --left {record.source}` shows them."
    )


def loss_report(record: SwitchoverRecord) -> dict[str, Any]:
    """Returns the loss of *record* and where its copies were cut off, for JSON; {} for other types."""
    loss = record.known_loss
    if loss is None:
        return {}
    cuts = {cut.topic_partition: cut for cut in record.cuts}
    partitions = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "copiedUpTo": partition.copied,
            "sourceEnd": partition.source_end,
            "evidence": partition.evidence.value,
            "seen": _timestamp(partition.seen_ms),
            "lostOffsetsAtLeast": partition.lost_offsets,
            "targetEnd": cuts[partition.topic_partition].target_end
            if partition.topic_partition in cuts
            else None,
        }
        for partition in loss.partitions
    ]
    return {
        "loss": {
            "lostOffsetsAtLeast": loss.lost_offsets,
            "partitionsWithLoss": len(loss.lost_partitions),
            "knownUntil": _timestamp(loss.known_until_ms),
            "sourceAnswered": loss.is_source_answering,
            "accepted": record.accepts_loss,
            "partitions": partitions,
        }
    }


def _timestamp(time_ms: int | None) -> str | None:
    return (
        None
        if time_ms is None
        else datetime.fromtimestamp(time_ms / 1000, tz=UTC).isoformat(timespec="seconds")
    )
