"""Decides which partition copiers wait for another copier of the flow.

A copier waits while another one is active, or while no fence keeps another one from writing
(docs/exactly-once.md, clauses 9 and 10). The other one is active as long as the target's end moves.
"""

import random
import time

from mirrorflow_core.exactly_once.alignment import ordinal_near
from mirrorflow_core.exactly_once.identity import Identity
from mirrorflow_core.exactly_once.succession import SILENCE_S, Predecessor, Watch, must_wait
from mirrorflow_kafka.admin.target_probe import ProbeResult
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.resume.stream_start import StreamStarts

SPREAD = (1.0, 1.5)  # factor on the waiting time, so that two copiers that watch do not begin together


class CopierWatch:
    """The watches of one task; *copier* is the task's own id."""

    def __init__(self, identity: Identity, anchoring: StreamStarts, *, copier: str) -> None:
        self._identity = identity
        self._anchoring = anchoring
        self._copier = copier
        self._watches: dict[PartitionCopier, Watch] = {}
        self._cleared: set[PartitionCopier] = set()  # no other copier was seen active there

    @property
    def is_watching(self) -> bool:
        """Returns whether any partition copier waits for another copier."""
        return bool(self._watches)

    def clear(self, lane: PartitionCopier) -> None:
        """Notes that no other copier is active on *lane*."""
        self._watches.pop(lane, None)
        self._cleared.add(lane)

    def forget(self, lane: PartitionCopier) -> None:
        """Drops *lane*, which belongs to another task now."""
        self._watches.pop(lane, None)
        self._cleared.discard(lane)

    def is_another_at_work(self, lane: PartitionCopier, heard: ProbeResult) -> bool:
        """Returns whether another copier of the same generation is active.

        It has overtaken *lane*, or was there before.
        """
        stream = lane.stream
        overtaken = (
            stream is not None
            and lane.refusals > 0
            and heard.memory is not None
            and heard.memory.epoch == self._identity.producer_epoch
            and self._is_ahead(lane, heard)
        )
        newcomer = stream is None and lane not in self._cleared and self._has_fresh_predecessor(lane)
        return self._must_wait(lane, heard, SILENCE_S if overtaken or newcomer else 0.0)

    def is_unfenced_copier_at_work(self, lane: PartitionCopier, heard: ProbeResult) -> bool:
        """Returns whether a copier of the earlier generation may still write.

        Until then its end is not known.
        """
        patience_s = 0.0 if lane in self._cleared else self._anchoring.unfenced_wait_s(lane)
        return self._must_wait(lane, heard, patience_s)

    def _must_wait(self, lane: PartitionCopier, heard: ProbeResult, patience_s: float) -> bool:
        """Returns whether the watch on *lane* is not over. A watch begins if *patience_s* is not 0."""
        now = time.monotonic()
        watch = self._watches.get(lane)
        if watch is None:
            if not patience_s:
                return False
            patience_s *= random.uniform(*SPREAD)  # noqa: S311
            watch = Watch(target_end=heard.high_watermark, since_s=now, patience_s=patience_s)
        watch = watch.seen(heard.high_watermark, now)
        if watch.is_over(now):
            self.clear(lane)
            lane.refusals = 0
            return False
        self._watches[lane] = watch
        return True

    def _is_ahead(self, lane: PartitionCopier, heard: ProbeResult) -> bool:
        """Returns whether the target has more of the flow's records than this process has ever sent."""
        assert lane.stream is not None
        assert heard.memory is not None
        sent = max([span.last for span in lane.unanswered], default=lane.stream.delivered.ordinal)
        return heard.memory.sequence >= 0 and ordinal_near(heard.memory.sequence, sent) > sent

    def _has_fresh_predecessor(self, lane: PartitionCopier) -> bool:
        position = lane.position
        if position is None or not position.copier:
            return False
        age_s = time.time() - position.written_ms / 1000
        found = Predecessor(copier=position.copier, left=position.left, age_s=age_s)
        return must_wait(found, own_copier=self._copier)


def surprises(lane: PartitionCopier, target_end: int) -> bool:
    """Returns whether the target is not as this process left it: shorter, grown by others, or re-created.

    A re-created topic accepts a batch that was in flight as its first; after that, its end is just where that
    batch put it.
    """
    stream = lane.stream
    if stream is None or stream.expected_target in {-1, target_end}:
        return stream is not None and stream.has_strayed
    return stream.has_strayed or not lane.pin.explains(target_end - stream.expected_target)
