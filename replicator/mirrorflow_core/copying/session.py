"""A task session: the task from one takeover of its partitions to the next.

A session ends when it was fenced, or when what was acknowledged does not show what the target has; the next one finds
that in the logs (`writer.takeover`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from mirrorflow_core.settings import LossPolicy
from mirrorflow_core.writer.flow_plan import SessionStart
from mirrorflow_core.writer.write_mode import plain_age_limit_ms

PRODUCER_EXPIRATION_MS: Final = 86_400_000  # Kafka's default, until the target's setting is read


@dataclass(slots=True, kw_only=True)
class CopySession:
    """What the partitions of a session share. The shell updates what it learns of the target."""

    start: SessionStart
    source_alias: str
    target_alias: str
    loss_policy: LossPolicy = LossPolicy.FAIL
    read_committed: bool = False
    skips_refused: bool = False  # records that the target refuses are left out
    # Target topics known to use LogAppendTime: by their settings, and then by each response.
    log_append_time_topics: set[str] = field(default_factory=set)
    # From this age on, records go in transactions; 0: all do.
    plain_age_limit_ms: int = plain_age_limit_ms(PRODUCER_EXPIRATION_MS)

    @property
    def unfenced_reason(self) -> str:
        """Why other writers are not fenced, so that records are copied at least once; "" if they are."""
        return self.start.unfenced_reason

    @property
    def is_fenced(self) -> bool:
        """Whether the task is the only writer of its partitions."""
        return not self.start.unfenced_reason

    def limit_plain_age(self, age_ms: int) -> None:
        """Writes records of *age_ms* and older in transactions; 0: all."""
        self.plain_age_limit_ms = age_ms

    def note_log_append_time(self, topics: Iterable[str]) -> None:
        """Notes target topics that are known to use LogAppendTime."""
        self.log_append_time_topics.update(topics)
