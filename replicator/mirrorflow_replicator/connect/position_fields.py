"""Our own fields in the value of a position: flat, because Java refuses nested ones, so the rungs are one string.

Any slip in them is a ValueError: `positions` then takes Java's field alone.
"""

from itertools import pairwise
from typing import Any

from mirrorflow_replicator.connect.java_json import INT64_MAX, integer_field, text_field
from mirrorflow_replicator.flow.position import RUNGS_MAX, UNKNOWN, Position, Rung

PREFIX = "mirrorflow."


def own_fields(position: Position) -> dict[str, int | str | bool]:
    """What stands behind Java's `offset`."""
    fields: dict[str, int | str | bool] = {
        # `offset` once more: who alters the one without the other has made the rest void.
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
    return fields


def with_own_fields(bare: Position, fields: dict[str, Any]) -> Position:
    """*bare*, which is Java's part, with our own of *fields*. Raises ValueError."""
    if integer_field(fields, PREFIX + "source.offset") != bare.source_offset:
        message = "the offset was altered"
        raise ValueError(message)
    left = fields.get(PREFIX + "left", False)
    if not isinstance(left, bool):
        message = f"{PREFIX}left is not a boolean"
        raise ValueError(message)  # noqa: TRY004 - one class of error for whatever is wrong with the bytes
    sequence = integer_field(fields, PREFIX + "sequence")  # an ordinal: goes on beyond 2^31
    return Position(
        topic=bare.topic,
        partition=bare.partition,
        source_offset=bare.source_offset,
        sequence=sequence,
        target_offset=integer_field(fields, PREFIX + "target.offset"),
        target_end=integer_field(fields, PREFIX + "target.end")
        if PREFIX + "target.end" in fields
        else UNKNOWN,
        epoch=integer_field(fields, PREFIX + "epoch"),
        source_topic_id=text_field(fields, PREFIX + "source.topic.id"),
        target_topic_id=text_field(fields, PREFIX + "target.topic.id"),
        rungs=_decode_rungs(text_field(fields, PREFIX + "rungs"), bare.source_offset),
        left=left,
        written_ms=integer_field(fields, PREFIX + "written.ms"),
        copier=text_field(fields, PREFIX + "copier"),
    )


def _encode_rungs(rungs: tuple[Rung, ...]) -> str:
    return ",".join(":".join(str(number) for number in rung) for rung in rungs)


def _decode_rungs(text: str, source_offset: int) -> tuple[Rung, ...]:
    if not text:
        return ()
    rungs = []
    for part in text.split(","):
        numbers = [int(number) for number in part.split(":")]
        if len(numbers) != len(Rung._fields) or max(numbers) > INT64_MAX or min(numbers) < UNKNOWN:
            message = f"{PREFIX}rungs is not a list of rungs"
            raise ValueError(message)
        rungs.append(Rung(*numbers))
    below = [source_offset, *(rung.source_offset for rung in rungs)]
    if len(rungs) > RUNGS_MAX or any(a <= b for a, b in pairwise(below)):
        message = f"{PREFIX}rungs is not a ladder"
        raise ValueError(message)
    return tuple(rungs)
