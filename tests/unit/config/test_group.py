"""The group that a distributed worker joins: only where it is asked for, and with what Connect's keys say."""

import pytest

from mirrorflow_core.errors import SettingError
from mirrorflow_core.settings import GroupSettings, SessionKeySettings
from mirrorflow_replicator.config.worker import load_distributed

LINES = {
    "bootstrap.servers": "b:9092",
    "group.id": "A-mm2",
    "client.id": "A->B",
    "config.storage.topic": "c",
    "status.storage.topic": "s",
    "offset.storage.topic": "o",
    "dedicated.mode.enable.internal.rest": "true",
}


def group(**changed: str | None) -> GroupSettings | None:
    """Of `LINES` with *changed*; None leaves a line out."""
    lines = LINES | {key.replace("_", "."): value for key, value in changed.items()}
    text = "\n".join(f"{key}={value}" for key, value in lines.items() if value is not None)
    settings = load_distributed(text, [])
    assert settings.distributed is not None
    return settings.distributed.group


def test_a_worker_is_alone_unless_it_says_otherwise() -> None:
    assert None is group(dedicated_mode_enable_internal_rest=None)
    assert None is group(dedicated_mode_enable_internal_rest="false")
    found = group()
    assert found is not None
    assert ("A-mm2", ("sessioned", "compatible"), 10.0, 0.5) == (
        found.group_id,
        found.protocols,
        found.session_s,
        found.heartbeat_s,
    )
    assert SessionKeySettings() == found.keys


def test_connects_keys_are_heeded() -> None:
    found = group(
        session_timeout_ms="6000",
        heartbeat_interval_ms="700",
        connect_protocol="compatible",
        inter_worker_key_generation_algorithm="HmacSHA512",
        inter_worker_key_ttl_ms="0",
    )
    assert found is not None
    assert (("compatible",), 6.0, 0.7) == (found.protocols, found.session_s, found.heartbeat_s)
    assert ("HmacSHA512", 64, 0) == (found.keys.algorithm, found.keys.size_bytes, found.keys.ttl_ms)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("group_id", ""),
        ("connect_protocol", "eager"),
        ("heartbeat_interval_ms", "10000"),
        ("inter_worker_signature_algorithm", "HmacSHA1"),
        ("inter_worker_key_generation_algorithm", "HmacROT13"),
        ("rebalance_timeout_ms", "60000"),
    ],
)
def test_what_would_not_work_is_refused(key: str, value: str) -> None:
    with pytest.raises(SettingError, match=key.replace("_", ".")):
        group(**{key: value})
