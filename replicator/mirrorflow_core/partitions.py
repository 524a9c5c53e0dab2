"""Names a partition: its topic and number."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A partition of a topic; the topic's name is that on the cluster in question."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
