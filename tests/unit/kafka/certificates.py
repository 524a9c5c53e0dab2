"""Certificates for tests of TLS.

They are a CA, certificates that it signs, and Java stores made with keytool.
"""

import datetime as dt
import functools
import ipaddress
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A key and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def key_pem(self, password: str = "") -> str:
        encryption = (
            serialization.BestAvailableEncryption(password.encode())
            if password
            else serialization.NoEncryption()
        )
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        ).decode()

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    def pkcs12(self, password: str, ca: "Identity") -> bytes:
        encryption = serialization.BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(
            b"mine", self.key, self.certificate, [ca.certificate], encryption
        )


@functools.cache
def authority(name: str = "Test CA") -> Identity:
    return _sign(name, None, ca=True, names=(), expired=False)


@functools.cache
def signed(
    name: str = "localhost", *, expired: bool = False, names: tuple[str, ...] = ("localhost",)
) -> Identity:
    return _sign(name, authority(), ca=False, names=names, expired=expired)


def _sign(name: str, issuer: Identity | None, *, ca: bool, names: tuple[str, ...], expired: bool) -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - 3 * DAY)
        .not_valid_after(NOW - DAY if expired else NOW + 30 * DAY)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        # Since Python 3.13, ssl.create_default_context refuses certificates without key identifiers.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key((issuer.key if issuer else key).public_key()),
            critical=False,
        )
    )
    if ca:
        builder = builder.add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=True,
                crl_sign=True,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    if names:
        ip = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))] if "localhost" in names else []
        alternatives = [*[x509.DNSName(alternative) for alternative in names], *ip]
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return Identity(key=key, certificate=builder.sign(issuer.key if issuer else key, hashes.SHA256()))


def keytool(*arguments: str | Path) -> None:
    """Runs the JDK's keytool; a failure shows its output."""
    done = subprocess.run(
        [
            "keytool",
            "-J-Xshare:auto",
            "-J-XX:TieredStopAtLevel=1",
            "-J-XX:+UseSerialGC",
            *map(str, arguments),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def java_truststore(path: Path, kind: str, certificate: Identity, password: str) -> Path:
    """A trust store created with keytool."""
    pem = path.with_suffix(".pem")
    pem.write_text(certificate.pem)
    keytool(
        "-importcert", "-noprompt", "-alias", "ca", "-file", pem, "-keystore", path, "-storetype", kind,
        "-storepass", password,
    )  # fmt: skip
    return path


def java_keystore(path: Path, kind: str, own: Identity, ca: Identity, store: str, key: str) -> Path:
    """A key store converted with keytool; *store* and *key* are passwords."""
    source = path.with_suffix(".source.p12")
    source.write_bytes(own.pkcs12("source-password", ca))
    # Without this option a JKS key keeps the password of the source store.
    key_password = ("-destkeypass", key) if kind == "JKS" else ()
    keytool(
        "-importkeystore", "-noprompt", "-srckeystore", source, "-srcstoretype", "pkcs12", "-srcalias", "mine",
        "-srcstorepass", "source-password", "-destkeystore", path, "-deststoretype", kind, "-deststorepass", store,
        *key_password,
    )  # fmt: skip
    return path
