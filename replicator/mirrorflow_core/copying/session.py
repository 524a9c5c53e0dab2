"""A task session: the task from one takeover of its partitions to the next.

A session ends when it was fenced, or when what was acknowledged does not show what the target has; the next one finds
that in the logs (`writer.takeover`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from mirrorflow_core.copying.event_log import ENTRIES_MAX, ENTRIES_MIN, TASK_ENTRIES_MAX
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import LossPolicy
from mirrorflow_core.writer.flow_plan import SessionStart
from mirrorflow_core.writer.write_mode import plain_age_limit_ms

T = TypeVar("T")
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
    entries_max: int = ENTRIES_MAX  # of a segment in the event log of a partition
    # Target topics known to use LogAppendTime: by their settings, and then by each response.
    log_append_time_topics: set[str] = field(default_factory=set)
    # From this age on, records go in transactions; 0: all do.
    plain_age_limit_ms: int = plain_age_limit_ms(PRODUCER_EXPIRATION_MS)

    @property
    def unfenced_reason(self) -> str | None:
        """Why other writers are not fenced, so that records are copied at least once; None if they are."""
        return self.start.unfenced_reason

    @property
    def is_fenced(self) -> bool:
        """Whether the task is the only writer of its partitions."""
        return self.start.unfenced_reason is None

    def limit_plain_age(self, age_ms: int) -> None:
        """Writes records of *age_ms* and older in transactions; 0: all."""
        self.plain_age_limit_ms = age_ms

    def limit_event_logs(self, partitions: int) -> None:
        """Bounds the event logs of further partitions, as the task has *partitions*."""
        self.entries_max = max(ENTRIES_MIN, min(ENTRIES_MAX, TASK_ENTRIES_MAX // max(1, partitions)))

    def note_log_append_time(self, topics: Iterable[str]) -> None:
        """Notes target topics that are known to use LogAppendTime."""
        self.log_append_time_topics.update(topics)

    def only(self, source: TopicPartition) -> "CopySession":
        """Returns the session as *source* sees it, without the other partitions."""
        start = self.start

        def own(values: Mapping[Any, T]) -> dict[Any, T]:
            return {key: value for key, value in values.items() if key in {source, source.topic}}

        alone = replace(
            start,
            points=own(start.points),
            problems=own(start.problems),
            waiting=own(start.waiting),
            losses=own(start.losses),
            topic_ids=own(start.topic_ids),
            owners=own(start.owners),
        )
        return replace(self, start=alone, log_append_time_topics=set(self.log_append_time_topics))
