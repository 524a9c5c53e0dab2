"""Repeats a request that only leaders can serve until the leaders are elected."""

from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from tests.harness.kafka.processes import HarnessError, wait_until

T = TypeVar("T")
# The errors that an admin client receives or raises while no leader is elected, after a broker's start or for a new
# topic.
NO_LEADER_YET = frozenset(
    {
        KafkaError._NOENT,  # no connection yet that knows the leader
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # a new topic that this broker does not know yet
        KafkaError.NOT_LEADER_FOR_PARTITION,  # elected, but does not know it yet
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,  # elected, but does not know the high watermark yet
    }
)


def call_leaders(topic: str, call: Callable[[], T]) -> T:
    """Returns the result of *call* once *topic* has leaders. Other errors are raised at once."""
    refusals: list[str] = []

    def attempt() -> tuple[T] | None:
        try:
            return (call(),)
        except KafkaException as error:
            if error.args[0].code() in NO_LEADER_YET:
                refusals.append(str(error))
                return None
            raise

    try:
        result = wait_until(f"{topic} has leaders that know it", attempt)
    except HarnessError as error:
        raise HarnessError(f"{error} {len(refusals)} refusals, the last: {refusals[-1]}") from None
    assert result is not None
    return result[0]
