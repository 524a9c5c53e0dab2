"""What nodes of one group ask of each other, as tests ask it: signed with the group's key, or not as it should be."""

import base64
import hashlib
import hmac
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping

from tests.harness.kafka.tools import records
from tests.integration.kafka.distributed import Site


def configs_topic(site: Site) -> str:
    """Where the group of *site* keeps its connectors, their tasks, and its key."""
    return site.topics()["config.storage.topic"]


def session_key(site: Site) -> bytes:
    """The group's newest, as only who may read the config topic has it."""
    found = [
        record.value for record in records(site.target, configs_topic(site)) if record.key == b"session-key"
    ]
    assert found[-1] is not None
    return base64.b64decode(json.loads(found[-1])["key"])


def signed(body: bytes, key: bytes, *, algorithm: str = "HmacSHA256") -> dict[str, str]:
    mac = base64.b64encode(hmac.new(key, body, hashlib.sha256).digest()).decode()
    return {"X-Connect-Authorization": mac, "X-Connect-Request-Signature-Algorithm": algorithm}


def ask(
    url: str,
    method: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    tls: ssl.SSLContext | None = None,
) -> int:
    """The status of the answer."""
    request = urllib.request.Request(url, data=body, method=method, headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=30, context=tls) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
