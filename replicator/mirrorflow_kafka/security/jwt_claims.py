"""Reads JSON objects and the claims of JWTs without verifying them, and encodes the parts of a JWT."""

import base64
import binascii
import json
from collections.abc import Mapping


def json_object(body: bytes) -> Mapping[str, object]:
    """Returns the JSON object in *body*; an empty one if there is none."""
    try:
        content = json.loads(body)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def jwt_claims(text: str) -> Mapping[str, object]:
    """Returns the claims of the JWT *text*; none if it is no JWT."""
    parts = text.split(".")
    if len(parts) != 3:
        return {}
    try:
        return json_object(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return {}


def to_base64url(data: bytes) -> str:
    """Returns *data* as base64url without padding (RFC 7515, 2)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
