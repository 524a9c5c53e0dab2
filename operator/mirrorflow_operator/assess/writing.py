"""When a status is worth a write: at once where its meaning changed, at most once a minute where figures moved. Pure."""

from typing import Final

from mirrorflow_operator.api.status import Status

FIGURES_EVERY_S: Final = 60.0  # issue 5: with traffic at most one status write a minute and flow


def worth_writing(old: Status, new: Status, *, last_write_s: float | None, now_s: float) -> bool:
    """Whether *new* is to be written over *old*, which stands in the cluster; *last_write_s* None: not by this process."""
    if new == old:
        return False
    if _meaning(new) != _meaning(old):
        return True
    return last_write_s is None or now_s - last_write_s >= FIGURES_EVERY_S


def _meaning(status: Status) -> Status:
    """*status* without what traffic moves."""
    return status.model_copy(update={"lag": None})
