"""Loads the certificates and keys that `ssl.truststore.*` and `ssl.keystore.*` name: JKS, PKCS12 or PEM, or inline PEM.

They are returned as DER and PEM bytes; `security.tls` loads them into an SSL context. Files are read at each
call, so a rotated file is used from the next connection's context on. The format is detected from the content, as in
Java 9 and later.

It is more lenient than Java, without trusting more than the store holds: PEM is detected without a type, certificates
in a PKCS12 store need no Java attribute, and keys may be in PKCS #1 or SEC1 form. `cryptography` is imported only for
PKCS12, and only on use, because it takes 9 MiB of memory.

JKS, versions 1 and 2, big endian: magic FEEDFEED, version, count, entries, SHA-1 over (password UTF-16BE, "Mighty Aphrodite", all
preceding bytes). Entry 1: alias UTF, date int64, protected key (int32 size), chain (count of certificates). Entry 2: alias, date,
one certificate. A certificate: its type as UTF (version 2 only), int32 size, DER. A protected key is an EncryptedPrivateKeyInfo
of OID 1.3.6.1.4.1.42.2.17.1.1: salt (20 bytes), key XOR SHA-1 chain over (password, previous), SHA-1(password, key) (20 bytes).
JCEKS protects keys differently and is not read. Source: sun.security.provider.JavaKeyStore and KeyProtector (javadoc).
"""

import base64
import binascii
import hashlib
import hmac
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TypeVar

from mirrorflow_core.errors import FileMissingError, InvalidSettingError, RefusedSettingError
from mirrorflow_core.light_dataclasses import dataclass

JKS_MAGIC = b"\xfe\xed\xfe\xed"
JCEKS_MAGIC = b"\xce\xce\xce\xce"
_DIGEST_BYTES = 20
_PROTECTOR_OID = bytes.fromhex("060a2b060104012a02110101")  # with its tag and length
_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----([^-]*)-----END \1-----")
# A store with all public CAs is about 200 KiB; a path such as /dev/zero must not fill the memory.
STORE_BYTES_MAX = 16 << 20
# Errors show a path up to this length; a longer value, or one with line breaks, is a pasted store.
_PATH_CHARS_MAX = 300
ADVICE = {
    "JCEKS": "JCEKS is not read; convert the store with keytool -importkeystore -deststoretype pkcs12",
    "PKCS11": "keys in hardware are not reachable from here",
}
_TYPES = frozenset({"JKS", "PKCS12", "PEM"})
_Content = TypeVar("_Content")


class StoreError(Exception):
    """Raised if a store cannot be read or a password is wrong; the message holds no secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JksEntry:
    """One entry: a protected private key with its chain, or a trusted certificate (empty `protected_key`)."""

    alias: str
    protected_key: bytes = field(repr=False)
    chain: tuple[bytes, ...] = field(repr=False)  # DER


class _KeyStoreReader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.index = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.index + size > len(self.data):
            raise StoreError("it is cut short")
        self.index += size
        return self.data[self.index - size : self.index]

    def int32(self) -> int:
        return int(struct.unpack(">i", self.take(4))[0])

    def text(self) -> str:
        # Java's modified UTF-8 differs from UTF-8 only beyond the BMP and at NUL; an alias is only displayed.
        return self.take(struct.unpack(">H", self.take(2))[0]).decode(errors="replace")


def read_jks(data: bytes, password: str | None) -> tuple[JksEntry, ...]:
    """Returns the entries of the store *data*. Raises StoreError. Without *password* its integrity is not checked, as in Java."""
    if len(data) < 12 + _DIGEST_BYTES or data[:4] != JKS_MAGIC:
        raise StoreError("it is not a JKS store")
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if password is not None:
        # The format requires SHA-1; here it only detects damage and wrong passwords.
        expected = hashlib.sha1(_utf16(password) + b"Mighty Aphrodite" + body, usedforsecurity=False).digest()
        if not hmac.compare_digest(expected, digest):
            raise StoreError("wrong password or damaged file")
    reader = _KeyStoreReader(body)
    reader.take(4)
    version = reader.int32()
    if version not in {1, 2}:
        raise StoreError(f"version {version} of the format is not known")
    return tuple(_entry(reader, version) for _ in range(reader.int32()))


def open_key(protected: bytes, password: str) -> bytes:
    """Returns the PKCS #8 DER of an entry's *protected* key. Raises StoreError if *password* is wrong."""
    sealed = _sealed(protected)
    if len(sealed) < 2 * _DIGEST_BYTES:
        raise StoreError("a private key is cut short")
    secret = _utf16(password)
    block, hidden = sealed[:_DIGEST_BYTES], sealed[_DIGEST_BYTES:-_DIGEST_BYTES]
    stream = bytearray()
    while len(stream) < len(hidden):
        block = hashlib.sha1(secret + block, usedforsecurity=False).digest()
        stream += block
    key = bytes(left ^ right for left, right in zip(hidden, stream, strict=False))
    if not hmac.compare_digest(
        hashlib.sha1(secret + key, usedforsecurity=False).digest(), sealed[-_DIGEST_BYTES:]
    ):
        raise StoreError("the key's password does not fit")
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
    raise StoreError("it holds an entry of an unknown kind")


def _certificate(reader: _KeyStoreReader, version: int) -> bytes:
    if version == 2:
        kind = reader.text()
        if kind not in {"X.509", "X509"}:
            raise StoreError("it holds a certificate that is not X.509")
    return reader.take(reader.int32())


def _sealed(protected: bytes) -> bytes:
    """Returns the OCTET STRING of an EncryptedPrivateKeyInfo {SEQUENCE {OID, NULL}, OCTET STRING}."""
    algorithm, rest = _value(_value(protected, 0x30)[0], 0x30)
    octets, _ = _value(rest, 0x04)
    if not algorithm.startswith(_PROTECTOR_OID):
        raise StoreError("a private key is protected in a way that JKS does not have")
    return octets


def _value(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """Returns the content of the DER value at the start of *data*, and the bytes after it."""
    if len(data) < 2 or data[0] != tag:
        raise StoreError("a private key is damaged")
    size, index = data[1], 2
    if size & 0x80:
        index = 2 + (size & 0x7F)
        size = int.from_bytes(data[2:index], "big")
    if index + size > len(data):
        raise StoreError("a private key is damaged")
    return data[index : index + size], data[index + size :]


def _utf16(password: str) -> bytes:
    return password.encode("utf-16-be", "surrogatepass")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientKey:
    """A client's key and certificate chain in PEM, its own certificate first. The key may be encrypted with `password`."""

    key_pem: bytes = field(repr=False)
    chain_pem: bytes = field(repr=False)
    password: str = field(repr=False)
    source: str  # the setting to name when OpenSSL does not like it


def blocks_of(data: bytes, key: str) -> tuple[tuple[str, bytes], ...]:
    """Returns each PEM block's label and DER; line breaks may be blanks, as in single-line values.

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
    """Returns the DER of each certificate block."""
    return tuple(der for label, der in blocks if label in {"CERTIFICATE", "X509 CERTIFICATE"})


def keys_in(blocks: tuple[tuple[str, bytes], ...]) -> tuple[bytes, ...]:
    """Returns each private key block, re-encoded as PEM."""
    return tuple(armoured(label, der) for label, der in blocks if label.endswith("PRIVATE KEY"))


def client_key_of(
    keys: tuple[bytes, ...], certificates: tuple[bytes, ...], password: str | None, key: str
) -> ClientKey:
    """Returns the first of *keys* (PEM) with the chain *certificates* (DER).

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
    return ClientKey(key_pem=keys[0], chain_pem=_chain(certificates), password=password or "", source=key)


def armoured(label: str, der: bytes) -> bytes:
    """Returns one PEM block."""
    # encodebytes breaks lines at 76 characters, the most that OpenSSL reads.
    return f"-----BEGIN {label}-----\n{base64.encodebytes(der).decode()}-----END {label}-----\n".encode()


def _chain(certificates: tuple[bytes, ...]) -> bytes:
    return b"".join(armoured("CERTIFICATE", der) for der in certificates)


def read_store(location: str, key: str) -> bytes:
    """Returns the content of the file at *location*. Raises InvalidSettingError that names the setting *key*."""
    shown = location if len(location) <= _PATH_CHARS_MAX and location.isprintable() else "the path"
    try:
        with Path(location).open("rb") as file:
            data = file.read(STORE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise FileMissingError(key=key, path=shown) from None
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) and error.strerror else "it is not a path"
        raise InvalidSettingError(key=key, problem=f"{shown} cannot be read: {problem}") from None
    if len(data) > STORE_BYTES_MAX:
        raise InvalidSettingError(key=key, problem=f"{shown} is larger than {STORE_BYTES_MAX >> 20} MiB")
    return data


def store_format(data: bytes, key: str) -> str:
    """Returns "JKS", "PKCS12" or "PEM". Raises SettingError for any other content."""
    if data.startswith(JKS_MAGIC):
        return "JKS"
    if data.startswith(JCEKS_MAGIC):
        raise RefusedSettingError(key=key, why=ADVICE["JCEKS"])
    if data.startswith(b"\x30"):  # a DER SEQUENCE
        return "PKCS12"
    if b"-----BEGIN " in data:
        return "PEM"
    raise InvalidSettingError(key=key, problem="the file is none of JKS, PKCS12 and PEM")


def read_pkcs12(data: bytes, password: str | None) -> tuple[bytes, tuple[bytes, ...]]:
    """Returns the first key as PKCS #8 DER (empty if there is none) and the certificates, the key's own first.

    Raises StoreError.
    """
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        Encoding,
        NoEncryption,
        PrivateFormat,
    )
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12  # noqa: PLC0415

    try:
        store = load_pkcs12(data, password.encode() if password else None)
    except (ValueError, UnsupportedAlgorithm):
        problem = "wrong password, damaged file, or an algorithm that OpenSSL lacks"
        raise StoreError(problem) from None
    own = [store.cert.certificate] if store.cert else []
    others = [other.certificate for other in store.additional_certs]
    certificates = tuple(certificate.public_bytes(Encoding.DER) for certificate in [*own, *others])
    if store.key is None:
        return b"", certificates
    return store.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()), certificates


def trusted_certificates(properties: Mapping[str, str]) -> tuple[bytes, ...] | None:
    """Returns the DER of every configured trust anchor; None if none is configured. Raises SettingError."""
    inline = properties.get("ssl.truststore.certificates", "")
    store = StoreFile.of(properties, "ssl.truststore")
    if inline and store is not None:
        raise InvalidSettingError(
            key="ssl.truststore.certificates", problem="ssl.truststore.location is set as well"
        )
    if inline:
        _only_pem(properties, "ssl.truststore", "ssl.truststore.certificates")
        certificates = certificates_in(blocks_of(inline.encode(), "ssl.truststore.certificates"))
    elif store is not None:
        certificates = store.trusted()
    else:
        return None
    if not certificates:
        key = "ssl.truststore.certificates" if inline else "ssl.truststore.location"
        raise InvalidSettingError(key=key, problem="it holds no certificate")
    return certificates


def client_key(properties: Mapping[str, str]) -> ClientKey | None:
    """Returns the client's configured key and chain; None if none is configured. Raises SettingError."""
    key, chain = properties.get("ssl.keystore.key", ""), properties.get("ssl.keystore.certificate.chain", "")
    store = StoreFile.of(properties, "ssl.keystore")
    if (key or chain) and store is not None:
        raise InvalidSettingError(key="ssl.keystore.key", problem="ssl.keystore.location is set as well")
    if store is not None:
        return store.key(properties.get("ssl.key.password"))
    if not key and not chain:
        return None
    if not key or not chain:
        missing, present = ("key", "certificate.chain") if chain else ("certificate.chain", "key")
        raise InvalidSettingError(
            key=f"ssl.keystore.{missing}", problem=f"it is missing beside ssl.keystore.{present}"
        )
    _only_pem(properties, "ssl.keystore", "ssl.keystore.key")
    keys = keys_in(blocks_of(key.encode(), "ssl.keystore.key"))
    certificates = certificates_in(blocks_of(chain.encode(), "ssl.keystore.certificate.chain"))
    return client_key_of(keys, certificates, properties.get("ssl.key.password"), "ssl.keystore.key")


def _only_pem(properties: Mapping[str, str], side: str, key: str) -> None:
    declared = properties.get(f"{side}.type", "").upper()
    if declared not in {"", "PEM"}:
        raise InvalidSettingError(key=key, problem=f"it is for PEM only, but {side}.type is {declared}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFile:
    """The content and format of one store file; `side` is ssl.truststore or ssl.keystore."""

    side: str
    format: str
    data: bytes = field(repr=False)
    password: str | None = field(repr=False)

    @classmethod
    def of(cls, properties: Mapping[str, str], side: str) -> "StoreFile | None":
        """Reads the store configured for *side*; returns None if none is configured. Raises SettingError."""
        location = properties.get(f"{side}.location", "")
        declared = properties.get(f"{side}.type", "").upper()
        if declared and declared not in _TYPES:
            why = ADVICE.get(declared, "only JKS, PKCS12 and PEM stores are read")
            raise RefusedSettingError(key=f"{side}.type", why=why)
        if not location:
            return None
        data = read_store(location, f"{side}.location")
        actual = store_format(data, f"{side}.location")
        if declared and (declared == "PEM") != (actual == "PEM"):
            raise InvalidSettingError(
                key=f"{side}.type",
                problem=f"it says {declared}, but the file is {actual}",
                action=f"set it to {actual}",
            )
        password = properties.get(f"{side}.password")
        if actual == "PEM" and password and declared == "PEM":
            raise InvalidSettingError(
                key=f"{side}.password",
                problem="a PEM store has no password",
                action="use ssl.key.password for its key",
            )
        return cls(side=side, format=actual, data=data, password=password)

    def trusted(self) -> tuple[bytes, ...]:
        """Returns the DER of the trust anchors. Raises InvalidSettingError."""
        if self.format == "PEM":
            return certificates_in(blocks_of(self.data, f"{self.side}.location"))
        if self.format == "JKS":
            # A key entry's own certificate is an anchor as well, as in Java's TrustStoreUtil.
            return tuple(entry.chain[0] for entry in self._read(read_jks) if entry.chain)
        return self._read(read_pkcs12)[1]

    def key(self, key_password: str | None) -> ClientKey:
        """Returns the private key and chain. Raises InvalidSettingError, which names the password that is wrong."""
        location = f"{self.side}.location"
        if self.format == "PEM":
            blocks = blocks_of(self.data, location)
            return client_key_of(keys_in(blocks), certificates_in(blocks), key_password, location)
        if self.format == "JKS":
            entry = next((entry for entry in self._read(read_jks) if entry.protected_key), None)
            if entry is None:
                raise InvalidSettingError(key=location, problem="the store holds no private key")
            # Java opens a JKS key with the store's password when ssl.key.password is not set.
            password = self.password if key_password is None else key_password
            try:
                key = open_key(entry.protected_key, password or "")
            except StoreError as error:
                setting = f"{self.side}.password" if key_password is None else "ssl.key.password"
                raise InvalidSettingError(key=setting, problem=str(error)) from None
            chain = entry.chain
        else:
            key, chain = self._read(read_pkcs12)
            if not key:
                raise InvalidSettingError(key=location, problem="the store holds no private key")
        return ClientKey(
            key_pem=armoured("PRIVATE KEY", key),
            chain_pem=_chain(chain),
            password="",
            source=location,
        )

    def _read(self, reader: Callable[[bytes, str | None], _Content]) -> _Content:
        try:
            return reader(self.data, self.password or None)
        except StoreError as error:
            missing = "" if self.password else f"; {self.side}.password is not set"
            problem = f"the {self.format} store cannot be read: {error}{missing}"
            raise InvalidSettingError(key=f"{self.side}.location", problem=problem) from None
