"""Signs and verifies requests between the workers of a group with a shared session key (KIP-507).

Connect calls this mode `sessioned`. The leader creates the key, stores it in the config topic, which only
workers may read, and replaces it when it expires. A request carries the MAC of its raw body in
`X-Connect-Authorization`, and the MAC's Java name in a second header (`InternalRequestSignature`). Refusals
use the status codes and messages of Apache's worker.

Pure: time and randomness are passed in.
"""

import base64
import binascii
import hashlib
import hmac
from dataclasses import field
from typing import Final

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.settings import SessionKeySettings

MISSING_SIGNATURE: Final = "Internal request missing required signature"
DEFAULT_ALGORITHM: Final = "HmacSHA256"
# Java's name -> hashlib's name and the default key size in bytes of Java's generators.
ALGORITHMS: Final = {
    "HmacMD5": ("md5", 64),
    "HmacSHA1": ("sha1", 64),
    "HmacSHA224": ("sha224", 28),
    "HmacSHA256": ("sha256", 32),
    "HmacSHA384": ("sha384", 48),
    "HmacSHA512": ("sha512", 64),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The two signature headers of a request between workers of a group (KIP-507); None: it is absent."""

    mac: str | None = None  # base64
    algorithm: str | None = None  # Java's name


NO_SIGNATURE = Signature()


class ConnectError(Exception):
    """An error to return as Connect's error body (Java ErrorMessage), with this HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKey:
    """The `session-key` record of the config topic."""

    key: bytes = field(repr=False)
    algorithm: str = DEFAULT_ALGORITHM
    created_ms: int = 0


def is_due(key: SessionKey | None, rules: SessionKeySettings, *, now_ms: int) -> bool:
    """Returns whether the leader must create a new key.

    True if there is none, if its algorithm or size does not match *rules*, or if it has expired. One from the future was
    written by a clock that was ahead, and would expire late.
    """
    if key is None or key.algorithm != rules.algorithm or len(key.key) != rules.size_bytes:
        return True
    return rules.ttl_ms > 0 and not 0 <= now_ms - key.created_ms < rules.ttl_ms


def sign(body: bytes, key: SessionKey, algorithm: str) -> Signature:
    """Returns the signature headers for a request with *body*, which is empty where there is none."""
    return Signature(
        mac=base64.b64encode(_mac(body, key.key, algorithm)).decode("ascii"), algorithm=algorithm
    )


def check(body: bytes, signature: Signature, key: SessionKey | None, rules: SessionKeySettings) -> None:
    """Raises ConnectError unless a worker of this group signed *body* with *signature*."""
    if not signature.mac or not signature.algorithm:
        raise ConnectError(400, MISSING_SIGNATURE)
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
