"""MirrorFlow's own fields in the value of a stored offset, flat because Java refuses nested fields.

The resume points (`rungs`) are therefore one string. Any error in these fields raises ValueError;
`position_records` then uses only Java's field.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

from mirrorflow_core.java.json_text import INT64_MAX, integer_field, text_field
from mirrorflow_core.position import RUNGS_MAX, UNKNOWN, Position, Rung

PREFIX = "mirrorflow."
SOURCE_EPOCHS = PREFIX + "source.epochs"
RUNG_NUMBERS = 4  # source offset, sequence, target offset, time


def own_fields(position: Position) -> dict[str, int | str | bool]:
    """Return the fields that follow Java's `offset`."""
    fields: dict[str, int | str | bool] = {
        # Repeats `offset`: an edit of `offset` alone invalidates all other fields.
        PREFIX + "source.offset": position.source_offset,
        PREFIX + "sequence": position.sequence,
        PREFIX + "target.offset": position.target_offset,
        PREFIX + "epoch": position.epoch,
        PREFIX + "source.topic.id": position.source_topic_id,
        PREFIX + "target.topic.id": position.target_topic_id,
        PREFIX + "rungs": _encode_rungs(position.rungs),
        PREFIX + "left": position.left,
        PREFIX + "written.ms": position.written_ms,
        PREFIX + "copier": position.copier,
    }
    if position.target_end != UNKNOWN:
        fields[PREFIX + "target.end"] = position.target_end
    epochs = [position.source_epoch, *(rung.source_epoch for rung in position.rungs)]
    if max(epochs) != UNKNOWN:
        # A separate field, because earlier versions expect a fixed count of numbers per rung.
        fields[SOURCE_EPOCHS] = ",".join(map(str, epochs))
    return fields


def epoch_fields(position: Position) -> dict[str, int | str | bool]:
    """Return the fields that follow Java's `offset` where only the leader epoch is known.

    This is so in transactions of a task.
    """
    return {
        PREFIX + "source.offset": position.source_offset,
        SOURCE_EPOCHS: str(position.source_epoch),
    }


def with_own_fields(bare: Position, fields: dict[str, Any]) -> Position:
    """Return *bare*, which has Java's part, with our own fields added. Raises ValueError."""
    if integer_field(fields, PREFIX + "source.offset") != bare.source_offset:
        message = "the offset was altered"
        raise ValueError(message)
    if PREFIX + "sequence" not in fields and SOURCE_EPOCHS in fields:
        return replace(bare, source_epoch=_decode_epochs(fields[SOURCE_EPOCHS], 1)[0])
    left = fields.get(PREFIX + "left", False)
    if not isinstance(left, bool):
        message = f"{PREFIX}left is not a boolean"
        raise ValueError(message)  # noqa: TRY004 - one class of error for whatever is wrong with the bytes
    sequence = integer_field(fields, PREFIX + "sequence")  # an ordinal: not limited to 2^31
    rungs = _decode_rungs(text_field(fields, PREFIX + "rungs"), bare.source_offset)
    epoch, *of_rungs = _decode_epochs(fields.get(SOURCE_EPOCHS), 1 + len(rungs))
    return Position(
        topic=bare.topic,
        partition=bare.partition,
        source_offset=bare.source_offset,
        source_epoch=epoch,
        sequence=sequence,
        target_offset=integer_field(fields, PREFIX + "target.offset"),
        target_end=integer_field(fields, PREFIX + "target.end")
        if PREFIX + "target.end" in fields
        else UNKNOWN,
        epoch=integer_field(fields, PREFIX + "epoch"),
        source_topic_id=text_field(fields, PREFIX + "source.topic.id"),
        target_topic_id=text_field(fields, PREFIX + "target.topic.id"),
        rungs=tuple(rung._replace(source_epoch=one) for rung, one in zip(rungs, of_rungs, strict=True)),
        left=left,
        written_ms=integer_field(fields, PREFIX + "written.ms"),
        copier=text_field(fields, PREFIX + "copier"),
    )


def _encode_rungs(rungs: tuple[Rung, ...]) -> str:
    return ",".join(":".join(str(number) for number in rung[:RUNG_NUMBERS]) for rung in rungs)


def _decode_rungs(text: str, source_offset: int) -> tuple[Rung, ...]:
    if not text:
        return ()
    rungs = []
    for part in text.split(","):
        numbers = [int(number) for number in part.split(":")]
        if len(numbers) != RUNG_NUMBERS or max(numbers) > INT64_MAX or min(numbers) < UNKNOWN:
            message = f"{PREFIX}rungs is not a list of rungs"
            raise ValueError(message)
        rungs.append(Rung(*numbers))
    below = [source_offset, *(rung.source_offset for rung in rungs)]
    if len(rungs) > RUNGS_MAX or any(a <= b for a, b in pairwise(below)):
        message = f"{PREFIX}rungs is not a ladder"
        raise ValueError(message)
    return tuple(rungs)


def _decode_epochs(value: object, count: int) -> list[int]:
    """Return the leader epochs of the offset and its rungs.

    All are unknown where an earlier version, which has no such field, wrote them.
    """
    if not isinstance(value, str):
        return [UNKNOWN] * count
    epochs = [int(number) for number in value.split(",")]
    if len(epochs) != count or min(epochs) < UNKNOWN:
        message = f"{SOURCE_EPOCHS} is not one epoch for each offset"
        raise ValueError(message)
    return epochs
