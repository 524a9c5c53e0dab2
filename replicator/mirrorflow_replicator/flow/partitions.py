"""The address of a partition."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A topic's name on the cluster at hand, and a partition of it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
