"""A certificate authority for tests, with the stores of a server and a client in each format that Java reads.

The server's names are localhost, 127.0.0.1 and an optional address. The client's principal is `User:CN=mirror`. All
stores and the encrypted key have the same password. keytool of the JDK writes the JKS files, so that they are exactly
Java's.
"""

import datetime as dt
import ipaddress
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PASSWORD = "store-secret"
LOOPBACK = "127.0.0.1"
LIFE = dt.timedelta(days=30)
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificates:
    """Paths of the files in *folder* that `make_certificates` writes.

    Keys are PKCS #8. Those named `*_encrypted_pem` need `password`.
    """

    folder: Path
    password: str = PASSWORD

    @property
    def ca_pem(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def server_p12(self) -> Path:
        return self.folder / "server.p12"

    @property
    def client_pem(self) -> Path:
        return self.folder / "client.pem"

    @property
    def client_key_pem(self) -> Path:
        return self.folder / "client.key.pem"

    @property
    def client_key_encrypted_pem(self) -> Path:
        return self.folder / "client.key.encrypted.pem"

    @property
    def client_p12(self) -> Path:
        return self.folder / "client.p12"

    @property
    def client_jks(self) -> Path:
        return self.folder / "client.jks"

    @property
    def truststore_p12(self) -> Path:
        return self.folder / "truststore.p12"

    @property
    def truststore_jks(self) -> Path:
        return self.folder / "truststore.jks"

    def broker_properties(self) -> dict[str, str]:
        """Returns the ssl.* properties of a broker, without the prefix of a listener."""
        return {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(self.server_p12),
            "ssl.keystore.password": self.password,
            "ssl.key.password": self.password,
        } | self.truststore_properties()

    def truststore_properties(self, kind: str = "PKCS12") -> dict[str, str]:
        """Returns the ssl.truststore.* properties of a Java client. *kind* is PKCS12, JKS or PEM."""
        if kind == "PEM":
            return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.ca_pem)}
        store = self.truststore_jks if kind == "JKS" else self.truststore_p12
        return {
            "ssl.truststore.type": kind,
            "ssl.truststore.location": str(store),
            "ssl.truststore.password": self.password,
        }

    def keystore_properties(self, kind: str = "PKCS12") -> dict[str, str]:
        """Returns the ssl.keystore.* properties of a Java client.

        PEM is inline, because Java 17 cannot read the encrypted key.
        """
        if kind == "PEM":
            return {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": self.client_pem.read_text(),
                "ssl.keystore.key": self.client_key_pem.read_text(),
            }
        store = self.client_jks if kind == "JKS" else self.client_p12
        return {
            "ssl.keystore.type": kind,
            "ssl.keystore.location": str(store),
            "ssl.keystore.password": self.password,
            "ssl.key.password": self.password,
        }


def make_certificates(folder: Path, *, address: str = LOOPBACK) -> Certificates:
    """Creates *folder* and writes all files into it within two seconds, mostly with keytool.

    *address* is an address of the server.
    """
    folder.mkdir(parents=True, exist_ok=True)
    certificates = Certificates(folder=folder)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _certificate("mirrorflow-test-ca", ca_key, issuer=None, issuer_key=ca_key)
    certificates.ca_pem.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    for name, subject, key in (
        ("server", "localhost", ec.generate_private_key(ec.SECP256R1())),
        ("client", "mirror", rsa.generate_private_key(public_exponent=65537, key_size=2048)),
    ):
        certificate = _certificate(subject, key, issuer=ca, issuer_key=ca_key, addresses={LOOPBACK, address})
        _write_identity(folder / name, name, key, certificate, ca)
    # Java trusts a PKCS12 entry only if its certificate has Java's attribute, which this writer sets.
    certificates.truststore_p12.write_bytes(
        pkcs12.serialize_java_truststore(
            [pkcs12.PKCS12Certificate(ca, b"ca")], serialization.BestAvailableEncryption(PASSWORD.encode())
        )
    )
    _to_jks(certificates.client_p12, certificates.client_jks)
    _to_jks(certificates.truststore_p12, certificates.truststore_jks)
    return certificates


def with_password(made: Certificates, folder: Path, password: str) -> Certificates:
    """Writes the client's stores of *made* with a different *password*, as PKCS12 and JKS, into the new *folder*."""
    folder.mkdir()
    changed = Certificates(folder=folder, password=password)
    encryption = serialization.BestAvailableEncryption(password.encode())
    key, certificate, authorities = pkcs12.load_key_and_certificates(
        made.client_p12.read_bytes(), made.password.encode()
    )
    assert isinstance(key, Key)
    changed.client_p12.write_bytes(
        pkcs12.serialize_key_and_certificates(b"client", key, certificate, authorities, encryption)
    )
    ca = x509.load_pem_x509_certificate(made.ca_pem.read_bytes())
    changed.truststore_p12.write_bytes(
        pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(ca, b"ca")], encryption)
    )
    _to_jks(changed.client_p12, changed.client_jks, password)
    _to_jks(changed.truststore_p12, changed.truststore_jks, password)
    return changed


def _certificate(
    subject: str,
    key: Key,
    *,
    issuer: x509.Certificate | None,
    issuer_key: Key,
    addresses: Collection[str] = (),
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.subject if issuer else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + LIFE)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
    )
    if issuer is None:
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    else:
        alternatives = [
            x509.DNSName("localhost"),
            *(x509.IPAddress(ipaddress.ip_address(address)) for address in sorted(addresses)),
        ]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(_usage(signs_certificates=False), critical=True)
        )
    return builder.sign(issuer_key, hashes.SHA256())


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not signs_certificates,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write_identity(
    stem: Path, alias: str, key: Key, certificate: x509.Certificate, ca: x509.Certificate
) -> None:
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    stem.with_name(f"{stem.name}.pem").write_bytes(certificate.public_bytes(pem) + ca.public_bytes(pem))
    stem.with_name(f"{stem.name}.key.pem").write_bytes(
        key.private_bytes(pem, pkcs8, serialization.NoEncryption())
    )
    stem.with_name(f"{stem.name}.key.encrypted.pem").write_bytes(key.private_bytes(pem, pkcs8, encryption))
    stem.with_name(f"{stem.name}.p12").write_bytes(
        pkcs12.serialize_key_and_certificates(alias.encode(), key, certificate, [ca], encryption)
    )


def _to_jks(source: Path, target: Path, password: str = PASSWORD) -> None:
    target.unlink(missing_ok=True)
    source_options = ("-srckeystore", str(source), "-srcstoretype", "PKCS12", "-srcstorepass", password)
    target_options = ("-destkeystore", str(target), "-deststoretype", "JKS", "-deststorepass", password)
    subprocess.run(
        ["keytool", "-importkeystore", "-noprompt", *source_options, *target_options],
        check=True,
        capture_output=True,
    )
