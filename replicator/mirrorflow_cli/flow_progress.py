"""Reads from the processes of a flow what they have seen of a source that is lost now: the ends of its partitions, and until when."""

import time
from collections.abc import Iterable
from typing import Final

from mirrorflow_cli.errors import FailedError
from mirrorflow_cli.run_progress import Progress, read_progress
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_replicator.switchover.loss_assessment import FlowProgress

# A source that is cut off is noticed when a fetch has had no response for as long (Java's request.timeout.ms).
NOTICED_WITHIN_S: Final = 30.0


def read_flow_progress(urls: Iterable[str]) -> FlowProgress:
    """Returns what the processes at *urls* have seen. Raises FailedError if one does not answer."""
    ends: dict[TopicPartition, int] = {}
    copied: dict[TopicPartition, int] = {}
    known_until_ms: int | None = None
    for url in urls:
        progress = read_progress(url)
        if progress is None:
            raise FailedError(
                f"--progress: {url} does not answer; write the address of a process of the flow, or leave it out."
            )
        for row in progress.partitions:
            partition = TopicPartition(str(row["topic"]), int(row["partition"]))
            for offsets, name in ((ends, "sourceEndOffset"), (copied, "sourceOffset")):
                if row.get(name) is not None:
                    offsets[partition] = max(int(row[name]), offsets.get(partition, 0))
        until_ms = _known_until_ms(progress)
        known_until_ms = until_ms if known_until_ms is None else max(until_ms, known_until_ms)
    return FlowProgress(ends=ends, copied=copied, known_until_ms=known_until_ms)


def _known_until_ms(progress: Progress) -> int:
    """Returns when the process has surely read the source for the last time, by this machine's clock."""
    side = progress.sides.get("source", {})
    # The process notices a source that is cut off only after a while, and cannot have read it in between.
    lost_s = float(side.get("sinceSeconds", 0.0)) if side.get("reach") != "Reachable" else 0.0
    return int((time.time() - lost_s - NOTICED_WITHIN_S) * 1000)
