"""A certificate authority for test clusters, which signs certificates of servers and users, and writes kubeconfigs."""

import base64
import datetime as dt
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = dt.timedelta(days=30)


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """A certificate and its key, in PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates into *folder*, which it creates. Keys are P-256, which takes a millisecond."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._signed(_name("mirrorflow-test-cluster"), self._key, ca=True)
        self.own = self._written("ca", self._certificate, self._key)

    def server(self, name: str, *addresses: str) -> Identity:
        """Creates the identity of a server with *addresses*, which are host names and IP addresses."""
        names = [_general_name(address) for address in addresses]
        return self._issued(name, _name(name), [x509.SubjectAlternativeName(names)])

    def user(self, name: str, groups: Sequence[str] = ()) -> Identity:
        """Creates the identity of the user *name* of *groups* (common name and organisations)."""
        return self._issued(name.replace(":", "-"), _name(name, groups), [])

    def signing_key(self, name: str) -> Identity:
        """Creates a key pair for tokens. The certificate contains only the public key."""
        return self._issued(name, _name(name), [])

    def kubeconfig(self, identity: Identity, server: str) -> Path:
        """Writes a kubeconfig with inline certificates."""
        file = identity.certificate.with_suffix(".kubeconfig")
        cluster = {"server": server, "certificate-authority-data": _inline(self.own.certificate)}
        user = {
            "client-certificate-data": _inline(identity.certificate),
            "client-key-data": _inline(identity.key),
        }
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        file.touch(mode=0o600)
        file.write_text(json.dumps(content, indent=1))
        return file

    def _issued(self, file: str, subject: x509.Name, extensions: Sequence[x509.ExtensionType]) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        return self._written(file, self._signed(subject, key, extensions=extensions), key)

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        ca: bool = False,
        extensions: Sequence[x509.ExtensionType] = (),
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if ca else self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + LIFE)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if not ca:
            usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
            builder = builder.add_extension(usage, critical=False)
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _written(self, file: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Identity:
        identity = Identity(certificate=self.folder / f"{file}.crt", key=self.folder / f"{file}.key")
        identity.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        identity.key.touch(mode=0o600)
        identity.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        return identity


def _name(common_name: str, organisations: Sequence[str] = ()) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation) for organisation in organisations]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _inline(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()
