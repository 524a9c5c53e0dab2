"""MirrorFlow's own fields in the value of a stored offset, flat because Java refuses nested fields.

Any error in these fields raises ValueError; `position_records` then uses only Java's field.
"""

from dataclasses import replace
from typing import Any

from mirrorflow_core.java.json_text import integer_field, text_field
from mirrorflow_core.position import UNKNOWN, Position

PREFIX = "mirrorflow."
SOURCE_OFFSET = (
    PREFIX + "source.offset"
)  # repeats `offset`: an edit of `offset` alone invalidates all other fields
SOURCE_EPOCHS = PREFIX + "source.epochs"
SOURCE_TOPIC_ID, TARGET_TOPIC_ID = PREFIX + "source.topic.id", PREFIX + "target.topic.id"
WRITTEN_MS = PREFIX + "written.ms"
_SEQUENCE = PREFIX + "sequence"


def own_fields(position: Position) -> dict[str, int | str | bool]:
    """Return the fields that follow Java's `offset`."""
    if position.source_epoch == UNKNOWN:
        return {}
    return {
        SOURCE_OFFSET: position.source_offset,
        SOURCE_EPOCHS: str(position.source_epoch),
        WRITTEN_MS: position.written_ms,
    }


def with_own_fields(bare: Position, fields: dict[str, Any]) -> Position:
    """Return *bare*, which has Java's part, with our own fields added. Raises ValueError."""
    if integer_field(fields, SOURCE_OFFSET) != bare.source_offset:
        message = "the offset was altered"
        raise ValueError(message)
    # Earlier releases wrote more epochs, for older offsets.
    epochs = text_field(fields, SOURCE_EPOCHS).split(",") if SOURCE_EPOCHS in fields else [str(UNKNOWN)]
    position = replace(
        bare,
        source_epoch=int(epochs[0]),
        source_topic_id=text_field(fields, SOURCE_TOPIC_ID) if SOURCE_TOPIC_ID in fields else "",
        target_topic_id=text_field(fields, TARGET_TOPIC_ID) if TARGET_TOPIC_ID in fields else "",
        written_ms=integer_field(fields, WRITTEN_MS) if WRITTEN_MS in fields else UNKNOWN,
    )
    if _SEQUENCE not in fields:
        return position
    left = fields.get(PREFIX + "left", False)
    if not isinstance(left, bool):
        message = f"{PREFIX}left is not a boolean"
        raise ValueError(message)  # noqa: TRY004 - one class of error for whatever is wrong with the bytes
    return replace(
        position,
        sequence=integer_field(fields, _SEQUENCE),  # an ordinal: not limited to 2^31
        target_offset=integer_field(fields, PREFIX + "target.offset"),
        epoch=integer_field(fields, PREFIX + "epoch"),
        left=left,
    )
