"""Reads Java's key store format JKS, versions 1 and 2.

The integrity digest is checked if there is a password; private keys are decrypted with their own password.
Nothing is written. JCEKS is not read, because it protects keys differently. `keystores` chooses the
entries.

Format, big endian: magic FEEDFEED, version, count, entries, SHA-1 over (password UTF-16BE, "Mighty
Aphrodite", all preceding bytes). Entry 1: alias UTF, date int64, protected key (int32 size), chain (count of
certificates). Entry 2: alias, date, one certificate. A certificate: its type as UTF (version 2 only), int32
size, DER. A protected key is an EncryptedPrivateKeyInfo of OID 1.3.6.1.4.1.42.2.17.1.1: salt (20 bytes), key
XOR SHA-1 chain over (password, previous), SHA-1(password, key) (20 bytes). Source:
sun.security.provider.JavaKeyStore and KeyProtector (javadoc).
"""

import hashlib
import hmac
import struct
from dataclasses import dataclass, field

JKS_MAGIC = b"\xfe\xed\xfe\xed"
JCEKS_MAGIC = b"\xce\xce\xce\xce"
_DIGEST_BYTES = 20
_PROTECTOR_OID = bytes.fromhex("060a2b060104012a02110101")  # with its tag and length


class JksError(Exception):
    """Raised if the bytes are not JKS or a password is wrong; the message holds neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JksEntry:
    """One entry: a protected private key with its chain, or a trusted certificate (empty `protected_key`)."""

    alias: str
    protected_key: bytes = field(repr=False)
    chain: tuple[bytes, ...] = field(repr=False)  # DER


class _KeyStoreReader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise JksError("it is cut short")
        self.at += size
        return self.data[self.at - size : self.at]

    def int32(self) -> int:
        return int(struct.unpack(">i", self.take(4))[0])

    def text(self) -> str:
        # Java's modified UTF-8 differs from UTF-8 only beyond the BMP and at NUL; an alias is only displayed.
        return self.take(struct.unpack(">H", self.take(2))[0]).decode(errors="replace")


def read_jks(data: bytes, password: str | None) -> tuple[JksEntry, ...]:
    """Return the entries of the store *data*. Raises JksError.

    Without *password* its integrity is not checked, as in Java.
    """
    if len(data) < 12 + _DIGEST_BYTES or data[:4] != JKS_MAGIC:
        raise JksError("it is not a JKS store")
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if password is not None:
        # The format requires SHA-1; here it only detects damage and wrong passwords.
        expected = hashlib.sha1(_utf16(password) + b"Mighty Aphrodite" + body, usedforsecurity=False).digest()
        if not hmac.compare_digest(expected, digest):
            raise JksError("the password does not fit, or the file is damaged")
    reader = _KeyStoreReader(body)
    reader.take(4)
    version = reader.int32()
    if version not in {1, 2}:
        raise JksError(f"version {version} of the format is not known")
    return tuple(_entry(reader, version) for _ in range(reader.int32()))


def open_key(protected: bytes, password: str) -> bytes:
    """Return the PKCS #8 DER of an entry's *protected* key. Raises JksError if *password* is wrong."""
    sealed = _sealed(protected)
    if len(sealed) < 2 * _DIGEST_BYTES:
        raise JksError("a private key is cut short")
    secret = _utf16(password)
    block, hidden, check = (
        sealed[:_DIGEST_BYTES],
        sealed[_DIGEST_BYTES:-_DIGEST_BYTES],
        sealed[-_DIGEST_BYTES:],
    )
    stream = bytearray()
    while len(stream) < len(hidden):
        block = hashlib.sha1(secret + block, usedforsecurity=False).digest()
        stream += block
    key = bytes(left ^ right for left, right in zip(hidden, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + key, usedforsecurity=False).digest(), check):
        raise JksError("the key's password does not fit")
    return key


def _entry(reader: _KeyStoreReader, version: int) -> JksEntry:
    tag, alias = reader.int32(), reader.text()
    reader.take(8)
    if tag == 1:
        key = reader.take(reader.int32())
        chain = tuple(_certificate(reader, version) for _ in range(reader.int32()))
        return JksEntry(alias=alias, protected_key=key, chain=chain)
    if tag == 2:
        return JksEntry(alias=alias, protected_key=b"", chain=(_certificate(reader, version),))
    raise JksError("it holds an entry of an unknown kind")


def _certificate(reader: _KeyStoreReader, version: int) -> bytes:
    if version == 2:
        kind = reader.text()
        if kind not in {"X.509", "X509"}:
            raise JksError("it holds a certificate that is not X.509")
    return reader.take(reader.int32())


def _sealed(protected: bytes) -> bytes:
    """Return the OCTET STRING of an EncryptedPrivateKeyInfo {SEQUENCE {OID, NULL}, OCTET STRING}."""
    algorithm, octets = _children(_value(protected, 0x30)[0])
    if not algorithm.startswith(_PROTECTOR_OID):
        raise JksError("a private key is protected in a way that JKS does not have")
    return octets


def _children(body: bytes) -> tuple[bytes, bytes]:
    algorithm, rest = _value(body, 0x30)
    return algorithm, _value(rest, 0x04)[0]


def _value(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """Return the content of the DER value at the start of *data*, and the bytes after it."""
    if len(data) < 2 or data[0] != tag:
        raise JksError("a private key is damaged")
    size, at = data[1], 2
    if size & 0x80:
        at = 2 + (size & 0x7F)
        size = int.from_bytes(data[2:at], "big")
    if at + size > len(data):
        raise JksError("a private key is damaged")
    return data[at : at + size], data[at + size :]


def _utf16(password: str) -> bytes:
    return password.encode("utf-16-be", "surrogatepass")
