"""A question that only leaders answer, asked until there are leaders."""

from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from tests.harness.kafka.processes import HarnessError, wait_until

T = TypeVar("T")
# Errors that an admin client receives or raises while no leader is elected: after a broker's start, or for a new topic.
NO_LEADER_YET = frozenset(
    {
        KafkaError._NOENT,  # no connection yet to ask who leads
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # a new topic, and not told yet
        KafkaError.NOT_LEADER_FOR_PARTITION,  # elected, and not told yet
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,  # elected, and does not know yet what is replicated
    }
)


def ask_leaders(topic: str, ask: Callable[[], T]) -> T:
    """What *ask* gives once *topic* has leaders that know it; any other refusal is raised at once."""
    refusals: list[str] = []

    def answered() -> tuple[T] | None:
        try:
            return (ask(),)
        except KafkaException as error:
            if error.args[0].code() in NO_LEADER_YET:
                refusals.append(str(error))
                return None
            raise

    try:
        found = wait_until(f"{topic} has leaders that know it", answered)
    except HarnessError as error:
        raise HarnessError(f"{error} {len(refusals)} refusals, the last one: {refusals[-1]}") from None
    assert found is not None
    return found[0]
