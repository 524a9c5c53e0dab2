"""One store file: the trust anchors, or the client's key, that a JKS, PKCS12 or PEM file holds.

Leniency against Java, none of which trusts more than the store says: without a type, PEM is recognised; a PKCS12 store of
plain certificates needs no Java attribute. The formats are `jks`', `pkcs12`'s and `pem`'s; which one it is, `store_bytes`'.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirrorflow_replicator.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_replicator.kafka.jks import JksEntry, JksError, open_key, read_jks
from mirrorflow_replicator.kafka.pem import (
    ClientKey,
    armoured,
    blocks_of,
    certificates_in,
    client_key_of,
    keys_in,
)
from mirrorflow_replicator.kafka.pkcs12 import Pkcs12Error, read_pkcs12
from mirrorflow_replicator.kafka.store_bytes import ADVICE, read_store, store_format

_TYPES = frozenset({"JKS", "PKCS12", "PEM"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFile:
    """One store file, read, its format known; `side` is ssl.truststore or ssl.keystore."""

    side: str
    format: str
    data: bytes = field(repr=False)
    password: str | None = field(repr=False)

    @classmethod
    def of(cls, properties: Mapping[str, str], side: str) -> "StoreFile | None":
        """The store that *properties* name for *side*; None when they name none. Raises SettingError."""
        location = properties.get(f"{side}.location", "")
        declared = properties.get(f"{side}.type", "").upper()
        if declared and declared not in _TYPES:
            why = ADVICE.get(declared, "only JKS, PKCS12 and PEM stores are read")
            raise RefusedSettingError(key=f"{side}.type", why=why)
        if not location:
            return None
        data = read_store(location, f"{side}.location")
        found = store_format(data, f"{side}.location")
        if declared and (declared == "PEM") != (found == "PEM"):
            raise InvalidSettingError(
                key=f"{side}.type",
                problem=f"it says {declared}, but the file is {found}",
                action=f"set it to {found}",
            )
        password = properties.get(f"{side}.password")
        if found == "PEM" and password and declared == "PEM":
            raise InvalidSettingError(
                key=f"{side}.password",
                problem="a PEM store has no password",
                action="use ssl.key.password for its key",
            )
        return cls(side=side, format=found, data=data, password=password)

    def trusted(self) -> tuple[bytes, ...]:
        """The DER of its trust anchors. Raises InvalidSettingError."""
        if self.format == "PEM":
            return certificates_in(blocks_of(self.data, f"{self.side}.location"))
        if self.format == "JKS":
            # A key entry's own certificate is an anchor as well, as in Java's TrustStoreUtil.
            return tuple(entry.chain[0] for entry in self._jks() if entry.chain)
        return self._pkcs12()[1]

    def key(self, key_password: str | None) -> ClientKey:
        """Its private key and chain. Raises InvalidSettingError, which names the password that does not fit."""
        location = f"{self.side}.location"
        if self.format == "PEM":
            blocks = blocks_of(self.data, location)
            return client_key_of(keys_in(blocks), certificates_in(blocks), key_password, location)
        if self.format == "JKS":
            entry = next((entry for entry in self._jks() if entry.protected_key), None)
            if entry is None:
                raise InvalidSettingError(key=location, problem="the store holds no private key")
            # Java opens a JKS key with the store's password when ssl.key.password is not set.
            password = self.password if key_password is None else key_password
            try:
                key = open_key(entry.protected_key, password or "")
            except JksError as error:
                setting = f"{self.side}.password" if key_password is None else "ssl.key.password"
                raise InvalidSettingError(key=setting, problem=str(error)) from None
            chain = entry.chain
        else:
            key, chain = self._pkcs12()
            if not key:
                raise InvalidSettingError(key=location, problem="the store holds no private key")
        return ClientKey(
            key_pem=armoured("PRIVATE KEY", key),
            chain_pem=b"".join(armoured("CERTIFICATE", der) for der in chain),
            password="",
            source=location,
        )

    def _jks(self) -> tuple[JksEntry, ...]:
        try:
            return read_jks(self.data, self.password or None)
        except JksError as error:
            raise self._unreadable(str(error)) from None

    def _pkcs12(self) -> tuple[bytes, tuple[bytes, ...]]:
        try:
            return read_pkcs12(self.data, self.password or None)
        except Pkcs12Error as error:
            raise self._unreadable(str(error)) from None

    def _unreadable(self, problem: str) -> InvalidSettingError:
        missing = "" if self.password else f"; {self.side}.password is not set"
        return InvalidSettingError(
            key=f"{self.side}.location", problem=f"the {self.format} store cannot be read: {problem}{missing}"
        )
