"""Start offsets of share groups: what one partition lacks does not hide the others."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from mirrorflow_core.errors import BrokerError
from mirrorflow_core.offsets.share_offsets import ShareStart
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.error_codes import (
    NOT_COORDINATOR,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    raise_for,
)
from mirrorflow_kafka.admin.share_groups import fetch_start_offsets


def topic(name: str, offset: int, error_code: int = 0) -> SimpleNamespace:
    partition = SimpleNamespace(partition_index=0, start_offset=offset, error_code=error_code, lag=3)
    return SimpleNamespace(topic_name=name, partitions=[partition])


def refuse(code: int, request: str, subject: str, *, cluster: str) -> None:
    raise_for(code, cluster=cluster, request=request, subject=subject)


def starts(*topics: SimpleNamespace) -> dict[TopicPartition, ShareStart]:
    response = SimpleNamespace(groups=[SimpleNamespace(error_code=0, topics=topics)])
    cluster: Any = SimpleNamespace(
        alias="west", call=AsyncMock(return_value=response), raise_for=partial(refuse, cluster="west")
    )
    return asyncio.run(fetch_start_offsets(cluster, "g"))


@pytest.mark.parametrize("code", [UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, TOPIC_AUTHORIZATION_FAILED])
def test_a_topic_that_was_deleted_or_is_denied_does_not_hide_the_others(code: int) -> None:
    expected = {TopicPartition("orders", 0): ShareStart(offset=5, lag_records=3)}

    assert starts(topic("gone", -1, code), topic("orders", 5)) == expected


def test_an_error_of_the_coordinator_is_one_of_the_group() -> None:
    with pytest.raises(BrokerError):
        starts(topic("gone", -1, NOT_COORDINATOR), topic("orders", 5))


def test_a_partition_without_a_start_offset_is_left_out() -> None:
    assert starts(topic("orders", -1)) == {}
