"""Chooses the request version that both the broker and this client support."""

from collections.abc import Mapping
from typing import Any

from mirrorflow_core.errors import UnsupportedBrokerError

Versions = Mapping[int, tuple[int, int]]  # API key -> (lowest, highest) version that the broker supports


def versions_of(response: Any) -> dict[int, tuple[int, int]]:
    """Return the broker's versions from a decoded ApiVersionsResponse."""
    return {int(api.api_key): (int(api.min_version), int(api.max_version)) for api in response.api_keys}


def choose_version(request: Any, versions: Versions, *, cluster: str) -> int:
    """Return the highest version that the request, kafka-python's schema and the broker allow.

    Raises UnsupportedBrokerError if there is none.
    """
    lowest: int = request._min_version or 0  # noqa: SLF001 kafka-python keeps a request's own bounds only there
    highest: int = request.max_version
    if request._max_version is not None:  # noqa: SLF001
        highest = min(highest, request._max_version)  # noqa: SLF001
    feature = request.name.removesuffix("Request")
    known = versions.get(request.API_KEY)
    if known is None:
        raise UnsupportedBrokerError(
            cluster=cluster, feature=feature, needs="a version of Kafka that knows this request"
        )
    lowest, highest = max(lowest, known[0]), min(highest, known[1])
    if lowest > highest:
        raise UnsupportedBrokerError(
            cluster=cluster,
            feature=f"{feature} in a version we know",
            needs=f"a version of Kafka whose {feature} we share (it takes {known[0]} to {known[1]})",
        )
    return highest
