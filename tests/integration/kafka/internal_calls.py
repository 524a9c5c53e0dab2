"""Sends the internal requests that nodes of a group exchange, with valid and invalid signatures."""

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
    """Returns the topic with the connectors, the task configs and the session key of the group of *site*."""
    return site.topics()["config.storage.topic"]


def session_key(site: Site) -> bytes:
    """Returns the group's latest session key from the config topic."""
    keys = [
        record.value for record in records(site.target, configs_topic(site)) if record.key == b"session-key"
    ]
    assert keys[-1] is not None
    return base64.b64decode(json.loads(keys[-1])["key"])


def signed(body: bytes, key: bytes, *, algorithm: str = "HmacSHA256") -> dict[str, str]:
    mac = base64.b64encode(hmac.new(key, body, hashlib.sha256).digest()).decode()
    return {"X-Connect-Authorization": mac, "X-Connect-Request-Signature-Algorithm": algorithm}


def send_request(
    url: str,
    method: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    tls: ssl.SSLContext | None = None,
) -> int:
    """Sends a request and returns the status of the response."""
    request = urllib.request.Request(url, data=body, method=method, headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=30, context=tls) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
