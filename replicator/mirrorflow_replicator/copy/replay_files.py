"""Writes what partitions did lately (`mirrorflow_core.copying.event_log`) into files, so that a developer can replay it."""

import json
import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from mirrorflow_core.copying.partition import CopierState, PartitionCopier

FILES_MAX: Final = (
    20  # of a process, the newest; each has some 100 kB, and the temporary folder may be memory
)

log = logging.getLogger("mirrorflow.task")


class ReplayFiles:
    """The files of one process: one for each partition, in a temporary folder of its own."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._written: dict[Path, None] = {}  # oldest first

    def write(self, copier: PartitionCopier) -> None:
        """Writes what *copier* did lately, in place of what was written of it before."""
        try:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="mirrorflow-replays-"))
            path = self._folder / f"{copier.topic}-{copier.partition}.json"
            path.write_text(json.dumps(copier.replay_document()))
        except OSError as error:
            log.warning("What %s did lately cannot be written for a replay: %s", copier.source, error)
            return
        self._written.pop(path, None)
        self._written[path] = None
        if len(self._written) > FILES_MAX:
            oldest = next(iter(self._written))
            del self._written[oldest]
            oldest.unlink(missing_ok=True)
        log.info("What %s did lately is in %s", copier.source, path)

    def write_some(self, copiers: Iterable[PartitionCopier]) -> None:
        """Writes FILES_MAX of *copiers* at most: first those that do not copy."""
        for copier in sorted(copiers, key=_is_copying)[:FILES_MAX]:
            self.write(copier)


def _is_copying(copier: PartitionCopier) -> bool:
    return copier.state is CopierState.COPYING and copier.health.stalled is None
