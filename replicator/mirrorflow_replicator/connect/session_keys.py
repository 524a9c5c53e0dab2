"""The key that the workers of a group sign their requests to each other with, as KIP-507 has it (Connect's `sessioned`).

The leader makes it, keeps it in the config topic, where only workers may read, and makes another one when its time is over.
A request carries the MAC of its body, raw, in `X-Connect-Authorization`, and the MAC's Java name beside it
(`InternalRequestSignature`). Refusals have the status codes and sentences of Apache's worker.

Pure: time and randomness are given.
"""

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

from mirrorflow_replicator.connect.view import ConnectError, Signature
from mirrorflow_replicator.settings import SessionKeySettings

DEFAULT_ALGORITHM: Final = "HmacSHA256"
# Java's names, with hashlib's, and the bytes of a key as Java's generators make them by default.
ALGORITHMS: Final = {
    "HmacMD5": ("md5", 64),
    "HmacSHA1": ("sha1", 64),
    "HmacSHA224": ("sha224", 28),
    "HmacSHA256": ("sha256", 32),
    "HmacSHA384": ("sha384", 48),
    "HmacSHA512": ("sha512", 64),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKey:
    """`session-key` of the config topic."""

    key: bytes = field(repr=False)
    algorithm: str = DEFAULT_ALGORITHM
    created_ms: int = 0


def is_due(key: SessionKey | None, rules: SessionKeySettings, *, now_ms: int) -> bool:
    """Whether the leader has to make another key."""
    if key is None or key.algorithm != rules.algorithm or len(key.key) != rules.size_bytes:
        return True
    return rules.ttl_ms > 0 and now_ms - key.created_ms >= rules.ttl_ms


def sign(body: bytes, key: SessionKey, algorithm: str) -> Signature:
    """The headers' values for a request with *body*, "" where it has none."""
    return Signature(
        mac=base64.b64encode(_mac(body, key.key, algorithm)).decode("ascii"), algorithm=algorithm
    )


def check(body: bytes, signature: Signature, key: SessionKey | None, rules: SessionKeySettings) -> None:
    """Raises ConnectError unless a worker of this group made *signature* for *body*."""
    if not (signature.mac and signature.algorithm):
        raise ConnectError(400, "Internal request missing required signature")
    if signature.algorithm not in rules.accepted or signature.algorithm not in ALGORITHMS:
        raise ConnectError(
            400,
            "This worker does not support the key signing algorithm used by other workers. "
            f"It is configured to use: {', '.join(rules.accepted)} (inter.worker.verification.algorithms).",
        )
    try:
        given = base64.b64decode(signature.mac, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConnectError(400, "The signature of an internal request is not base64.") from error
    if key is None:
        raise ConnectError(503, "This worker has not read the group's session key yet.")
    if not hmac.compare_digest(given, _mac(body, key.key, signature.algorithm)):
        raise ConnectError(403, "Internal request contained invalid signature.")


def _mac(body: bytes, key: bytes, algorithm: str) -> bytes:
    return hmac.new(key, body, getattr(hashlib, ALGORITHMS[algorithm][0])).digest()
