"""Reading settings of topics: what brokers refuse, and what they do not report."""

import asyncio
from typing import Any, cast

import pytest
from kafka.protocol.admin.configs import DescribeConfigsResponse

from mirrorflow_core.errors import NotAuthorizedError
from mirrorflow_core.wire import error_codes
from mirrorflow_core.wire.error_codes import NONE, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION
from mirrorflow_kafka.admin import admin

RESULT = DescribeConfigsResponse.DescribeConfigsResult
CONFIG = RESULT.DescribeConfigsResourceResult
TYPE = "message.timestamp.type"


class DescribingCluster:
    """A cluster that describes each topic by its name: `denied`, `absent`, `bare` without settings, or any other."""

    alias = "west"

    async def call(self, request: Any, **_: object) -> DescribeConfigsResponse:
        codes = {"denied": TOPIC_AUTHORIZATION_FAILED, "absent": UNKNOWN_TOPIC_OR_PARTITION}
        value = CONFIG(name=TYPE, value="CreateTime", read_only=False, config_source=5, is_sensitive=False)
        results = []
        for resource in request.resources:
            name = resource.resource_name
            is_shown = name not in {*codes, "bare"}
            code = codes.get(name, NONE)
            configs = [value] if is_shown else []
            results.append(
                RESULT(
                    error_code=code, error_message=None, resource_type=2, resource_name=name, configs=configs
                )
            )
        return DescribeConfigsResponse(throttle_time_ms=0, results=results)

    def raise_for(self, code: int, request: str, subject: str | None = None, **more: Any) -> None:
        error_codes.raise_for(code, cluster=self.alias, request=request, subject=subject, **more)


WEST = cast("Any", DescribingCluster())


def test_a_setting_that_a_cluster_does_not_report_is_unknown():
    """Services that speak Kafka's protocol report only the settings that they have."""
    topics = ["orders", "bare", "denied", "absent"]

    values = asyncio.run(admin.describe_topic_setting(WEST, topics, TYPE))

    assert values == {"orders": "CreateTime", "bare": None, "denied": None}


def test_a_refused_topic_is_reported_beside_the_settings_of_the_others():
    topics = ["denied", "orders", "absent"]

    described = asyncio.run(admin.try_describe_topic_configs(WEST, topics))

    assert [*described.configs] == ["orders"]
    assert described.unknown == {"absent"}
    assert isinstance(described.refused["denied"], NotAuthorizedError)
    with pytest.raises(NotAuthorizedError):
        asyncio.run(admin.describe_topic_configs(WEST, topics))
