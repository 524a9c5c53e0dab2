"""The leader epochs of the source records that a partition has copied.

A source that loses records in an unclean election has other records at the same offsets afterwards. Its log and what
was copied are the same up to where an epoch that both have ends in one of them, as between a leader and its followers
(KIP-101, KIP-279; `LeaderEpochFileCache` in Kafka).
"""

from typing import Final, NamedTuple, TypeAlias

_UNKNOWN: Final = -1
# A replica that returns after more elections than these, with records that none of their leaders had, is found
# as far as the oldest one.
EPOCHS_MAX: Final = 8


class EpochStart(NamedTuple):
    """A leader epoch, and the offset after the last copied record before it.

    That offset, not the first of the epoch that was copied: compaction may have removed the records between.
    """

    epoch: int
    first_offset: int


SourceEpochs: TypeAlias = tuple[EpochStart, ...]  # oldest first


def followed_by(epochs: SourceEpochs, epoch: int, first_offset: int) -> SourceEpochs:
    """Returns *epochs* and *epoch* (-1: unknown), whose records begin at *first_offset* or later."""
    if epoch == _UNKNOWN or (epochs and epochs[-1].epoch == epoch):
        return epochs
    # Those that begin there or later have no record any more: what was copied of them is lost on the source.
    kept = [start for start in epochs if start.first_offset < first_offset]
    return (*kept[1 - EPOCHS_MAX :], EpochStart(epoch, first_offset))


def up_to(epochs: SourceEpochs, epoch: int, next_offset: int) -> SourceEpochs:
    """Returns *epochs* of the records before *next_offset*, the last of which has *epoch*; none if that is unknown.

    If it is missing, it is added as if it began there.
    """
    if epoch == _UNKNOWN:
        return ()
    return followed_by(tuple(start for start in epochs if start.epoch <= epoch), epoch, next_offset)


def end_of(epochs: SourceEpochs, epoch: int) -> int | None:
    """Returns the offset from which on the copied records are of epochs later than *epoch*; None: there are none."""
    return next((start.first_offset for start in epochs if start.epoch > epoch), None)


def encode_epochs(epochs: SourceEpochs) -> str:
    """Returns the text of *epochs* in a stored position: `0:0,3:1500`."""
    return ",".join(f"{epoch.epoch}:{epoch.first_offset}" for epoch in epochs)


def decode_epochs(text: str) -> SourceEpochs:
    """Returns the epochs of which `encode_epochs` made *text*. Raises ValueError."""
    pairs = (pair.split(":") for pair in text.split(",") if text)
    return tuple(EpochStart(int(epoch), int(first_offset)) for epoch, first_offset in pairs)
