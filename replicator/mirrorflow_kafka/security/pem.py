"""Reads certificates and private keys from PEM text, and builds a client's key with its chain.

Keys may be in PKCS #1 or SEC1 form, which Java does not read.
"""

import base64
import binascii
import re
from dataclasses import dataclass, field

from mirrorflow_core.errors import InvalidSettingError

_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----([^-]*)-----END \1-----")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientKey:
    """A client's key and certificate chain in PEM, its own certificate first.

    The key may be encrypted with `password`.
    """

    key_pem: bytes = field(repr=False)
    chain_pem: bytes = field(repr=False)
    password: str = field(repr=False)
    source: str  # the setting to name when OpenSSL does not like it


def blocks_of(data: bytes, key: str) -> tuple[tuple[str, bytes], ...]:
    """Return each PEM block's label and DER; line breaks may be blanks, as in single-line values.

    Raises InvalidSettingError that names the setting *key*.
    """
    blocks = []
    for label, body in _BLOCK.findall(data):
        try:
            blocks.append((label.decode(), base64.b64decode(b"".join(body.split()), validate=True)))
        except (binascii.Error, ValueError):
            raise InvalidSettingError(
                key=key, problem="a PEM block in it is damaged, or of the old encrypted kind"
            ) from None
    if not blocks:
        raise InvalidSettingError(key=key, problem="it holds no PEM block")
    return tuple(blocks)


def certificates_in(blocks: tuple[tuple[str, bytes], ...]) -> tuple[bytes, ...]:
    """Return the DER of each certificate block."""
    return tuple(der for label, der in blocks if label in {"CERTIFICATE", "X509 CERTIFICATE"})


def keys_in(blocks: tuple[tuple[str, bytes], ...]) -> tuple[bytes, ...]:
    """Return each private key block, re-encoded as PEM."""
    return tuple(armoured(label, der) for label, der in blocks if label.endswith("PRIVATE KEY"))


def client_key_of(
    keys: tuple[bytes, ...], certificates: tuple[bytes, ...], password: str | None, key: str
) -> ClientKey:
    """Return the first of *keys* (PEM) with the chain *certificates* (DER).

    Raises InvalidSettingError that names the setting *key*.
    """
    if not keys:
        raise InvalidSettingError(key=key, problem="it holds no private key")
    if not certificates:
        raise InvalidSettingError(key=key, problem="there is no certificate for the private key")
    encrypted = b"BEGIN ENCRYPTED" in keys[0]
    if encrypted and not password:
        raise InvalidSettingError(
            key="ssl.key.password", problem="the private key is encrypted and it is not set"
        )
    chain = b"".join(armoured("CERTIFICATE", der) for der in certificates)
    return ClientKey(key_pem=keys[0], chain_pem=chain, password=password or "", source=key)


def armoured(label: str, der: bytes) -> bytes:
    """Return one PEM block."""
    # encodebytes breaks lines at 76 characters, the most that OpenSSL reads.
    return b"-----BEGIN %b-----\n%b-----END %b-----\n" % (
        label.encode(),
        base64.encodebytes(der),
        label.encode(),
    )
