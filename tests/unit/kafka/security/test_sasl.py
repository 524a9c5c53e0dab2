"""SASL exchanges follow RFC 7677 and Java, and refuse brokers that do not prove their identity."""

import asyncio
import base64
import hashlib
import hmac

import pytest

from mirrorflow_core.errors import AuthenticationFailedError
from mirrorflow_kafka.security.sasl import BrokerAddress, Login, PlainClient, ScramClient

# kafka-python calls a function that Python 3.11 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")
SCRAM_ADDRESS = BrokerAddress(cluster="A", address="b:9092", mechanism="SCRAM-SHA-256")
PLAIN_ADDRESS = BrokerAddress(cluster="A", address="b:9092", mechanism="PLAIN")


def scram(username: str = "user", password: str = "pencil", *, token_auth: bool = False) -> ScramClient:
    client = ScramClient(Login(username=username, password=password, token_auth=token_auth), SCRAM_ADDRESS)
    client._arithmetic.nonce = b"rOprNGfwEbeRWgbNEkqO"  # the nonce of RFC 7677
    return client


SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def test_scram_follows_the_example_of_rfc_7677():
    """The messages equal those of the RFC."""
    client = scram()

    assert asyncio.run(client.first()) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.receive(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert client.receive(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


def test_a_user_name_is_escaped_as_in_rfc_5802():
    """Otherwise a comma or an equals sign would start a new attribute."""
    assert asyncio.run(scram("a=b,c").first()) == b"n,,n=a=3Db=2Cc,r=rOprNGfwEbeRWgbNEkqO"


def test_a_delegation_token_is_marked_and_signed():
    """By KIP-48, the message has the extension, and the proof covers it."""
    client = scram("id", "hmac", token_auth=True)
    first = asyncio.run(client.first())
    final = client.receive(SERVER_FIRST)

    assert first == b"n,,n=id,r=rOprNGfwEbeRWgbNEkqO,tokenauth=true"
    salted = hashlib.pbkdf2_hmac("sha256", b"hmac", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
    key = hmac.digest(salted, b"Client Key", "sha256")
    message = first[3:] + b"," + SERVER_FIRST + b"," + final.rpartition(b",p=")[0]  # type: ignore[union-attr]
    signature = hmac.digest(hashlib.sha256(key).digest(), message, "sha256")
    proof = bytes(left ^ right for left, right in zip(key, signature, strict=True))
    assert final is not None
    assert final.rpartition(b",p=")[2] == base64.b64encode(proof)


@pytest.mark.parametrize(
    ("responses", "expected"),
    [
        ([b"e=unknown-user"], "does not accept the name and password"),
        ([b"r=other,s=W22Z,i=4096"], "RFC 5802"),
        ([SERVER_FIRST.replace(b"4096", b"1")], "expose the password"),
        ([SERVER_FIRST.replace(b"4096", b"99999999999")], "RFC 5802"),
        ([SERVER_FIRST.replace(b"4096", b"many")], "RFC 5802"),
        ([b"m=x," + SERVER_FIRST], "extension"),
        ([b"\xff"], "not SCRAM's"),
        ([b""], "not SCRAM's"),
        ([SERVER_FIRST, b"v=AAAA"], "does not prove"),
        ([SERVER_FIRST, b"v=A"], "does not prove"),
        ([SERVER_FIRST, b"x=y"], "does not prove"),
        ([SERVER_FIRST, b"e=invalid-proof"], "does not accept"),
        ([SERVER_FIRST, b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", b"x=y"], "continues after"),
    ],
)
def test_a_broker_with_an_invalid_exchange_is_refused(responses: list[bytes], expected: str):
    """The error names cluster, broker and mechanism, and shows no secret."""
    client = scram()
    asyncio.run(client.first())
    for response in responses[:-1]:
        client.receive(response)

    with pytest.raises(AuthenticationFailedError) as raised:
        client.receive(responses[-1])

    assert expected in str(raised.value)
    assert str(raised.value).startswith("Cluster A at b:9092: SCRAM-SHA-256 authentication failed: ")
    assert "pencil" not in str(raised.value) + repr(raised.value) + repr(client)


def test_plain_sends_one_message_as_in_java():
    """As in Java's PlainSaslClient, the message has no authorization identity."""
    client = PlainClient(Login(username="ü", password="p\\w"), PLAIN_ADDRESS)

    assert asyncio.run(client.first()) == b"\0\xc3\xbc\0p\\w"
    client.receive(b"")
    with pytest.raises(AuthenticationFailedError):
        client.receive(b"more")


def test_the_repr_of_a_login_shows_no_credentials():
    shown = repr(Login(username="alice", password="hunter2"))

    assert "hunter2" not in shown
    assert "alice" not in shown
