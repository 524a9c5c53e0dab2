"""Java's stores, as keytool and `cryptography` make them, are read; what cannot be read is named without its secrets."""

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
    """One of each, made by keytool."""
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
def test_truststore_of_keytool_is_read(stores: Path, file: str, kind: str):
    """JKS and PKCS12 are told apart by content, as in Java 9 and later."""
    properties = {"ssl.truststore.location": str(stores / file), "ssl.truststore.password": STORE}

    found = trusted_certificates(properties | ({"ssl.truststore.type": kind} if kind else {}))

    assert found == (authority().der,)


@pytest.mark.parametrize("file", ["key.jks", "same.jks", "key.p12", "key.pem"])
def test_keystore_holds_key_and_chain(stores: Path, file: str):
    """Every kind yields the same key and the chain, our certificate first."""
    properties = {"ssl.keystore.location": str(stores / file)}
    if file != "key.pem":
        properties["ssl.keystore.password"] = STORE
    if file in {"key.jks", "key.pem"}:
        properties["ssl.key.password"] = KEY

    found = client_key(properties)

    assert found is not None
    key = serialization.load_pem_private_key(found.key_pem, found.password.encode() or None)
    assert key.private_numbers() == signed().key.private_numbers()  # type: ignore[union-attr]
    chain = x509.load_pem_x509_certificates(found.chain_pem)
    assert chain == [signed().certificate, authority().certificate]


def test_truststore_without_password_is_read_unchecked(stores: Path):
    """As in Java, no password means no integrity check of a JKS store."""
    assert trusted_certificates({"ssl.truststore.location": str(stores / "trust.jks")}) == (authority().der,)


def test_keystore_as_truststore_trusts_its_own_certificate(stores: Path):
    """A key entry's certificate is an anchor, as in Java's TrustStoreUtil."""
    properties = {"ssl.truststore.location": str(stores / "key.jks"), "ssl.truststore.password": STORE}

    assert trusted_certificates(properties) == (signed().der,)


def test_inline_pem_of_one_line_is_read():
    """Values of one line, blanks for line ends, are what many secret stores give."""
    properties = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority().pem.replace("\n", " "),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": signed().key_pem(KEY).replace("\n", " "),
        "ssl.keystore.certificate.chain": signed().pem.replace("\n", " "),
        "ssl.key.password": KEY,
    }

    assert trusted_certificates(properties) == (authority().der,)
    found = client_key(properties)
    assert found is not None
    assert b"ENCRYPTED" in found.key_pem


def test_nothing_named_is_nothing():
    """Without settings Java uses the system's authorities and no key."""
    assert (trusted_certificates({}), client_key({})) == (None, None)


@pytest.mark.parametrize(
    ("properties", "key", "words"),
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
def test_unusable_keystore_is_named_without_its_secrets(
    stores: Path, properties: dict[str, str], key: str, words: str
):
    """One sentence names the setting that is wrong; no password is in it."""
    with pytest.raises(InvalidSettingError) as raised:
        client_key({name: value.format(stores) for name, value in properties.items()})

    assert raised.value.key == key
    assert words in str(raised.value)
    assert "wrong-secret" not in repr(raised.value) + str(raised.value)


@pytest.mark.parametrize("kind", ["PKCS11", "BCFKS", "JCEKS"])
def test_other_kinds_of_store_are_refused(kind: str):
    """What only a Java provider reads is refused by name."""
    with pytest.raises(RefusedSettingError, match=r"ssl\.truststore\.type is refused"):
        trusted_certificates({"ssl.truststore.type": kind, "ssl.truststore.location": "x"})


def test_jceks_is_refused_by_its_content(tmp_path: Path):
    """A JCEKS store without a type is distinguished from JKS, and the error says what to do."""
    path = tmp_path / "keys"
    keytool("-genseckey", "-alias", "a", "-keyalg", "AES", "-keysize", "128", "-keystore", path, "-storetype", "JCEKS", "-storepass", STORE)  # fmt: skip

    with pytest.raises(RefusedSettingError, match="deststoretype pkcs12"):
        trusted_certificates({"ssl.truststore.location": str(path)})


def test_key_that_does_not_belong_is_not_shown(stores: Path):
    """Neither repr nor str of what is read shows a key."""
    found = client_key({"ssl.keystore.location": str(stores / "key.pem"), "ssl.key.password": KEY})

    assert KEY not in repr(found)
    assert "PRIVATE" not in repr(found)


@given(st.binary(max_size=200), st.sampled_from([b"", JKS_MAGIC + b"\0\0\0\2"]))
def test_damaged_jks_is_refused_not_crashed(data: bytes, magic: bytes):
    """Any bytes end in StoreError, never in another exception."""
    content = magic + data
    try:
        entries = read_jks(content, None)
    except StoreError:
        return
    for entry in entries:
        with pytest.raises(StoreError):
            open_key(entry.protected_key, "x")


def test_every_cut_of_a_store_is_refused(stores: Path):
    """A store that was copied in part never loads with its password."""
    data = (stores / "key.jks").read_bytes()
    for size in range(0, len(data), 7):
        with pytest.raises(StoreError):
            read_jks(data[:size], STORE)


def test_changed_byte_is_found(stores: Path):
    """The integrity digest covers the store."""
    data = bytearray((stores / "trust.jks").read_bytes())
    data[40] ^= 1
    with pytest.raises(StoreError, match="damaged"):
        read_jks(bytes(data), STORE)


def test_truststore_without_certificates_is_an_error(tmp_path: Path):
    """An empty trust store would refuse every broker; say so at the start."""
    path = tmp_path / "only-key.pem"
    path.write_text(signed().key_pem())
    with pytest.raises(SettingError, match="no certificate"):
        trusted_certificates({"ssl.truststore.location": str(path)})
