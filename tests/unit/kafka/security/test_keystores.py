"""Java key and trust stores are read. Errors name unusable stores without showing secrets."""

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError, SettingError
from mirrorflow_kafka.security.keystores import (
    JKS_MAGIC,
    StoreError,
    client_key,
    open_key,
    read_jks,
    trusted_certificates,
)
from tests.unit.kafka.certificates import authority, java_keystore, java_truststore, keytool, signed

STORE, KEY = "store-Password", "key-Passwort-7"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of each type, created with keytool."""
    folder = tmp_path_factory.mktemp("stores")
    java_truststore(folder / "trust.jks", "JKS", authority(), STORE)
    java_truststore(folder / "trust.p12", "PKCS12", authority(), STORE)
    java_keystore(folder / "key.jks", "JKS", signed(), authority(), STORE, KEY)
    java_keystore(folder / "same.jks", "JKS", signed(), authority(), STORE, STORE)
    java_keystore(folder / "key.p12", "PKCS12", signed(), authority(), STORE, STORE)
    (folder / "trust.pem").write_text(authority().pem)
    (folder / "key.pem").write_text(signed().key_pem(KEY) + signed().pem + authority().pem)
    return folder


@pytest.mark.parametrize(("file", "kind"), [("trust.jks", "JKS"), ("trust.p12", "PKCS12"), ("trust.jks", "PKCS12"), ("trust.p12", "")])  # fmt: skip
def test_a_truststore_of_keytool_is_read(stores: Path, file: str, kind: str):
    """JKS and PKCS12 are distinguished by content, as in Java 9 and later."""
    properties = {"ssl.truststore.location": str(stores / file), "ssl.truststore.password": STORE}

    certificates = trusted_certificates(properties | ({"ssl.truststore.type": kind} if kind else {}))

    assert certificates == (authority().der,)


@pytest.mark.parametrize("file", ["key.jks", "same.jks", "key.p12", "key.pem"])
def test_a_keystore_yields_its_key_and_chain(stores: Path, file: str):
    """Each type yields the same key, and the chain beginning with the own certificate."""
    properties = {"ssl.keystore.location": str(stores / file)}
    if file != "key.pem":
        properties["ssl.keystore.password"] = STORE
    if file in {"key.jks", "key.pem"}:
        properties["ssl.key.password"] = KEY

    client = client_key(properties)

    assert client is not None
    key = serialization.load_pem_private_key(client.key_pem, client.password.encode() or None)
    assert key.private_numbers() == signed().key.private_numbers()  # type: ignore[union-attr]
    chain = x509.load_pem_x509_certificates(client.chain_pem)
    assert chain == [signed().certificate, authority().certificate]


def test_a_truststore_without_a_password_is_read_without_an_integrity_check(stores: Path):
    """Java does the same for a JKS store."""
    assert trusted_certificates({"ssl.truststore.location": str(stores / "trust.jks")}) == (authority().der,)


def test_a_keystore_used_as_truststore_trusts_its_own_certificate(stores: Path):
    """As in Java's TrustStoreUtil, the certificate of a key entry is trusted."""
    properties = {"ssl.truststore.location": str(stores / "key.jks"), "ssl.truststore.password": STORE}

    assert trusted_certificates(properties) == (signed().der,)


def test_inline_pem_on_one_line_is_read():
    """Many secret stores return values on one line, with blanks instead of line ends."""
    properties = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority().pem.replace("\n", " "),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": signed().key_pem(KEY).replace("\n", " "),
        "ssl.keystore.certificate.chain": signed().pem.replace("\n", " "),
        "ssl.key.password": KEY,
    }

    assert trusted_certificates(properties) == (authority().der,)
    client = client_key(properties)
    assert client is not None
    assert b"ENCRYPTED" in client.key_pem


def test_without_settings_there_are_no_stores():
    """Like Java, the client then uses the system's authorities and no key."""
    assert (trusted_certificates({}), client_key({})) == (None, None)


@pytest.mark.parametrize(
    ("properties", "key", "expected"),
    [
        ({"ssl.keystore.location": "{}/key.jks", "ssl.keystore.password": "wrong-secret"}, "ssl.keystore.location", "wrong password"),
        ({"ssl.keystore.location": "{}/key.jks", "ssl.keystore.password": STORE}, "ssl.keystore.password", "key's password"),
        ({"ssl.keystore.location": "{}/key.jks", "ssl.keystore.password": STORE, "ssl.key.password": "wrong-secret"}, "ssl.key.password", "does not fit"),
        ({"ssl.keystore.location": "{}/key.p12", "ssl.keystore.password": "wrong-secret"}, "ssl.keystore.location", "wrong password"),
        ({"ssl.keystore.location": "{}/key.p12"}, "ssl.keystore.location", "ssl.keystore.password is not set"),
        ({"ssl.keystore.location": "{}/trust.jks", "ssl.keystore.password": STORE}, "ssl.keystore.location", "no private key"),
        ({"ssl.keystore.location": "{}/trust.p12", "ssl.keystore.password": STORE}, "ssl.keystore.location", "no private key"),
        ({"ssl.keystore.location": "{}/key.pem"}, "ssl.key.password", "encrypted"),
        ({"ssl.keystore.location": "{}/absent.jks"}, "ssl.keystore.location", "No such file"),
        ({"ssl.keystore.location": "/dev/zero"}, "ssl.keystore.location", "larger than"),
        ({"ssl.keystore.location": "/dev/null"}, "ssl.keystore.location", "none of JKS"),
        ({"ssl.keystore.location": "{}/key.jks", "ssl.keystore.type": "PEM"}, "ssl.keystore.type", "set it to JKS"),
        ({"ssl.keystore.location": "{}/key.pem", "ssl.keystore.type": "JKS"}, "ssl.keystore.type", "set it to PEM"),
        ({"ssl.keystore.location": "{}/key.pem", "ssl.keystore.type": "PEM", "ssl.keystore.password": "wrong-secret"}, "ssl.keystore.password", "no password"),
        ({"ssl.keystore.key": "wrong-secret"}, "ssl.keystore.certificate.chain", "missing"),
        ({"ssl.keystore.key": "wrong-secret", "ssl.keystore.certificate.chain": "x"}, "ssl.keystore.key", "no PEM"),
        ({"ssl.keystore.key": "wrong-secret", "ssl.keystore.location": "{}/key.jks"}, "ssl.keystore.key", "as well"),
        ({"ssl.keystore.location": "wrong-secret\n-----BEGIN"}, "ssl.keystore.location", "the path"),
    ],
)  # fmt: skip
def test_an_unusable_keystore_is_an_error_of_its_setting_without_secrets(
    stores: Path, properties: dict[str, str], key: str, expected: str
):
    """The error names the invalid setting and shows no password."""
    with pytest.raises(InvalidSettingError) as raised:
        client_key({name: value.format(stores) for name, value in properties.items()})

    assert raised.value.key == key
    assert expected in str(raised.value)
    assert "wrong-secret" not in repr(raised.value) + str(raised.value)


@pytest.mark.parametrize("kind", ["PKCS11", "BCFKS", "JCEKS"])
def test_other_types_of_store_are_refused(kind: str):
    """Stores that only a Java provider can read are refused by name."""
    with pytest.raises(RefusedSettingError, match=r"ssl\.truststore\.type is refused"):
        trusted_certificates({"ssl.truststore.type": kind, "ssl.truststore.location": "x"})


def test_jceks_is_refused_by_its_content(tmp_path: Path):
    """A JCEKS store without a configured type is distinguished from JKS, and the error has the remedy."""
    path = tmp_path / "keys"
    keytool("-genseckey", "-alias", "a", "-keyalg", "AES", "-keysize", "128", "-keystore", path, "-storetype", "JCEKS", "-storepass", STORE)  # fmt: skip

    with pytest.raises(RefusedSettingError, match="deststoretype pkcs12"):
        trusted_certificates({"ssl.truststore.location": str(path)})


def test_the_repr_of_a_client_key_does_not_show_the_key(stores: Path):
    client = client_key({"ssl.keystore.location": str(stores / "key.pem"), "ssl.key.password": KEY})

    assert KEY not in repr(client)
    assert "PRIVATE" not in repr(client)


@given(st.binary(max_size=200), st.sampled_from([b"", JKS_MAGIC + b"\0\0\0\2"]))
def test_any_bytes_of_a_jks_store_cause_only_a_store_error(data: bytes, magic: bytes):
    content = magic + data
    try:
        entries = read_jks(content, None)
    except StoreError:
        return
    for entry in entries:
        with pytest.raises(StoreError):
            open_key(entry.protected_key, "x")


def test_a_truncated_store_is_refused(stores: Path):
    """A partly copied store never loads with its password."""
    data = (stores / "key.jks").read_bytes()
    for size in range(0, len(data), 7):
        with pytest.raises(StoreError):
            read_jks(data[:size], STORE)


def test_a_changed_byte_of_a_store_is_detected(stores: Path):
    """The integrity digest covers the store."""
    data = bytearray((stores / "trust.jks").read_bytes())
    data[40] ^= 1
    with pytest.raises(StoreError, match="damaged"):
        read_jks(bytes(data), STORE)


def test_a_truststore_without_certificates_is_an_error(tmp_path: Path):
    """An empty trust store would refuse every broker, so it is an error at the start."""
    path = tmp_path / "only-key.pem"
    path.write_text(signed().key_pem())
    with pytest.raises(SettingError, match="no certificate"):
        trusted_certificates({"ssl.truststore.location": str(path)})
