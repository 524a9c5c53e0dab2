"""Signatures of requests between workers equal those of Java. Requests without a valid signature are refused."""

from dataclasses import replace

import pytest

from mirrorflow_core.connect.session_keys import (
    ConnectError,
    SessionKey,
    Signature,
    check,
    is_due,
    sign,
)
from mirrorflow_core.connect.worker_records import TaskCount, decode_config, encode_config
from mirrorflow_core.connect.worker_state import WorkerConfigs
from mirrorflow_core.settings import SessionKeySettings

KEY = SessionKey(key=bytes(range(32)), created_ms=1_700_000_000_000)
BODY = b'[{"task.index":"0"}]'
RULES = SessionKeySettings()


@pytest.mark.parametrize(
    ("body", "mac"),
    [
        (BODY, "kVpgHVVEWjB2mdP2hFgEb2vA3zkDt/6Gemt9vtNwiA8="),
        (b"", "04tCCW2A9F+Ca0Sp1WB95ySWpBXT9KGoyI47udqNwcs="),
    ],
)
def test_a_signature_equals_that_of_java(body: bytes, mac: str) -> None:
    """The expected MACs were created by Java's InternalRequestSignature."""
    assert Signature(mac=mac, algorithm="HmacSHA256") == sign(body, KEY, "HmacSHA256")
    check(body, sign(body, KEY, "HmacSHA256"), KEY, RULES)


@pytest.mark.parametrize(
    ("signature", "key", "status"),
    [
        (Signature(), KEY, 400),
        (Signature(mac="AAAA"), KEY, 400),
        (Signature(algorithm="HmacSHA256"), KEY, 400),
        (Signature(mac="no base 64!", algorithm="HmacSHA256"), KEY, 400),
        (sign(BODY, KEY, "HmacSHA1"), KEY, 400),
        (Signature(mac="AAAA", algorithm="HmacROT13"), KEY, 400),
        (sign(BODY, KEY, "HmacSHA256"), None, 503),
        (sign(BODY, replace(KEY, key=bytes(32)), "HmacSHA256"), KEY, 403),
        (sign(BODY + b" ", KEY, "HmacSHA256"), KEY, 403),
    ],
    ids=[
        "none", "no-algorithm", "no-mac", "not-base64", "other-algorithm", "unknown-algorithm", "no-key-yet",
        "former-key", "other-body",
    ],
)  # fmt: skip
def test_a_request_without_a_valid_signature_is_refused(
    signature: Signature, key: SessionKey | None, status: int
) -> None:
    with pytest.raises(ConnectError) as refused:
        check(BODY, signature, key, RULES)
    assert status == refused.value.status
    assert "ROT13" not in str(refused.value)


def test_a_key_is_rotated_when_it_expires_or_its_settings_change() -> None:
    created_ms = KEY.created_ms
    assert is_due(None, RULES, now_ms=created_ms)
    assert not is_due(KEY, RULES, now_ms=created_ms + RULES.ttl_ms - 1)
    assert is_due(KEY, RULES, now_ms=created_ms + RULES.ttl_ms)
    assert is_due(KEY, RULES, now_ms=created_ms - 1)  # the clock was set back
    assert not is_due(KEY, replace(RULES, ttl_ms=0), now_ms=created_ms + 10**12)
    assert is_due(KEY, replace(RULES, size_bytes=64), now_ms=created_ms)
    assert is_due(KEY, replace(RULES, algorithm="HmacSHA512"), now_ms=created_ms)


def test_the_record_of_a_session_key_equals_that_of_java() -> None:
    key, value = encode_config(KEY)
    assert b"session-key" == key
    assert (
        b'{"key":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=","algorithm":"HmacSHA256",'
        b'"creation-timestamp":1700000000000}'
    ) == value
    configs = WorkerConfigs()
    record = decode_config(key, value)
    assert record is not None
    configs.take(record)
    assert KEY == configs.session_key
    assert "AAEC" not in repr(record)


def test_the_record_of_fenced_tasks_equals_that_of_java() -> None:
    key, value = encode_config(TaskCount(connector="a-1", tasks=3))
    assert (b"tasks-fencing-a-1", b'{"task-count":3}') == (key, value)
    assert TaskCount(connector="a-1", tasks=3) == decode_config(key, value)


@pytest.mark.parametrize(
    "value", [b'{"key":"%%","creation-timestamp":1}', b'{"key":"AAAA"}', b'{"creation-timestamp":1}', b"[]"]
)
def test_a_malformed_session_key_is_a_value_error(value: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_config(b"session-key", value)
