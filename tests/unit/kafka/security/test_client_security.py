"""Java security properties configure TLS and SASL. Handshakes run against a real TLS server in this process."""

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_core.errors import (
    ConnectionLostError,
    InvalidSettingError,
    MirrorFlowError,
    RefusedSettingError,
    SettingError,
)
from mirrorflow_core.java.security_keys import SECURITY_KEYS, verdict
from mirrorflow_kafka.client.pool import open_connection
from mirrorflow_kafka.security.client_security import build_security
from mirrorflow_kafka.security.tls import openssl_name
from tests.unit.kafka.certificates import Identity, authority, java_keystore, java_truststore, signed

SECRET = "hunter2-secret"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trust and key stores of every kind."""
    folder = tmp_path_factory.mktemp("stores")
    java_truststore(folder / "trust.jks", "JKS", authority(), SECRET)
    java_truststore(folder / "trust.p12", "PKCS12", authority(), SECRET)
    java_keystore(folder / "key.jks", "JKS", signed("client"), authority(), SECRET, "key-" + SECRET)
    (folder / "key.p12").write_bytes(signed("client").pkcs12(SECRET, authority()))
    (folder / "trust.pem").write_text(authority().pem)
    (folder / "key.pem").write_text(signed("client").key_pem(SECRET) + signed("client").pem)
    return folder


def tls(folder: Path, trust: str, key: str = "") -> dict[str, str]:
    """Returns properties for the stores in *folder*."""
    properties = {"security.protocol": "SSL", "ssl.truststore.location": str(folder / trust)}
    if not trust.endswith("pem"):
        properties["ssl.truststore.password"] = SECRET
    if key:
        properties["ssl.keystore.location"] = str(folder / key)
        properties |= {} if key.endswith("pem") else {"ssl.keystore.password": SECRET}
        properties |= {
            "key.pem": {"ssl.key.password": SECRET},
            "key.jks": {"ssl.key.password": "key-" + SECRET},
        }.get(key, {})
    return properties


def handshake(properties: dict[str, str], tmp: Path, server: Identity | None = None, *, host: str = "localhost", mutual: bool = False, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> tuple[str, str]:  # fmt: skip
    """Returns the TLS version and the client's name as the server receives it, after one byte in each direction."""
    server = server or signed()
    pem = tmp / "server.pem"
    pem.write_text(server.key_pem() + server.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    context.maximum_version = version
    if mutual:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=authority().pem)
    names: list[str] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peercert") or {}
        names.extend(value for part in peer.get("subject", ()) for _, value in part)
        writer.write(await reader.read(1))
        writer.close()

    async def run() -> str:
        server_socket = await asyncio.start_server(respond, "127.0.0.1", 0, ssl=context)
        async with server_socket:
            port = server_socket.sockets[0].getsockname()[1]
            client = build_security(properties, cluster="A").ssl_context
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=client, server_hostname=host
            )
            try:
                writer.write(b"x")
                assert await reader.readexactly(1) == b"x"
                return str(writer.get_extra_info("ssl_object").version())
            finally:
                writer.transport.abort()

    return asyncio.run(run()), "".join(names)


@pytest.mark.parametrize("trust", ["trust.jks", "trust.p12", "trust.pem"])
@pytest.mark.parametrize("key", ["key.jks", "key.p12", "key.pem"])
def test_mutual_tls_works_with_every_type_of_store(stores: Path, tmp_path: Path, trust: str, key: str):
    """The server receives the client certificate."""
    assert handshake(tls(stores, trust, key), tmp_path, mutual=True) == ("TLSv1.3", "client")


def test_mutual_tls_works_with_inline_pem(tmp_path: Path):
    """The inline values of KIP-651 are used, with an encrypted key."""
    properties = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority().pem,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": signed("client").key_pem(SECRET),
        "ssl.keystore.certificate.chain": signed("client").pem,
        "ssl.key.password": SECRET,
    }

    assert handshake(properties, tmp_path, mutual=True) == ("TLSv1.3", "client")


def test_a_server_that_requires_a_client_certificate_refuses_a_client_without_one(
    stores: Path, tmp_path: Path
):
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        handshake(tls(stores, "trust.pem"), tmp_path, mutual=True)


@pytest.mark.parametrize(
    ("server", "host", "code"),
    [
        (signed("other", names=("other",)), "localhost", 62),
        (signed("old", expired=True), "localhost", 10),
        (signed(), "10.9.8.7", 64),
    ],
)
def test_invalid_server_certificates_are_refused(
    stores: Path, tmp_path: Path, server: Identity, host: str, code: int
):
    """The certificates have a different name, a different address, or have expired."""
    with pytest.raises(ssl.SSLCertVerificationError) as raised:
        handshake(tls(stores, "trust.p12"), tmp_path, server, host=host)
    assert raised.value.verify_code == code


def test_a_certificate_of_an_unknown_authority_is_refused(tmp_path: Path):
    """A trust store replaces the system's authorities."""
    other = {"security.protocol": "SSL", "ssl.truststore.certificates": authority("Other CA").pem}
    for properties in (other, {"security.protocol": "SSL"}):
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(properties, tmp_path)


def test_a_server_certificate_in_the_truststore_is_trusted(tmp_path: Path):
    """As in Java, the trust store may have the broker's own certificate."""
    properties = {"security.protocol": "SSL", "ssl.truststore.certificates": signed().pem}

    assert handshake(properties, tmp_path)[0] == "TLSv1.3"


def test_the_common_name_is_checked_if_there_are_no_alternative_names(stores: Path, tmp_path: Path):
    """The JDK applies this rule to old certificates."""
    assert handshake(tls(stores, "trust.pem"), tmp_path, signed("localhost", names=()))[0] == "TLSv1.3"


def test_the_name_check_can_be_disabled_but_not_the_chain_check(stores: Path, tmp_path: Path):
    """An empty ssl.endpoint.identification.algorithm disables only the name check."""
    off = {"ssl.endpoint.identification.algorithm": ""}
    server = signed("other", names=("other",))

    assert handshake(tls(stores, "trust.pem") | off, tmp_path, server)[0] == "TLSv1.3"
    context = build_security(tls(stores, "trust.pem") | off, cluster="A").ssl_context
    assert context is not None
    assert not context.check_hostname
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake({"security.protocol": "SSL", **off}, tmp_path, server)


@pytest.mark.parametrize(
    ("setting", "value", "result"),
    [
        ("ssl.enabled.protocols", "TLSv1.2", "TLSv1.2"),
        ("ssl.enabled.protocols", "TLSv1.3, TLSv1.1", "TLSv1.3"),
        ("ssl.cipher.suites", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLSv1.2"),
        ("ssl.cipher.suites", "TLS_AES_256_GCM_SHA384", "TLSv1.3"),
        ("ssl.cipher.suites", "TLS_AES_256_GCM_SHA384,TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLSv1.3"),
    ],
)
def test_configured_protocols_and_cipher_suites_are_used(
    stores: Path, tmp_path: Path, setting: str, value: str, result: str
):
    """No other protocols and cipher suites are offered."""
    assert handshake(tls(stores, "trust.pem") | {setting: value}, tmp_path)[0] == result


@pytest.mark.parametrize(
    ("iana", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_DHE_RSA_WITH_AES_128_CBC_SHA256", "DHE-RSA-AES128-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", "ECDHE-ECDSA-AES128-SHA"),
        ("TLS_RSA_WITH_AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_CCM_8", "ECDHE-ECDSA-AES128-CCM8"),
        ("SSL_RSA_WITH_RC4_128_MD5", None),
    ],
)
def test_cipher_suites_are_mapped_to_openssl_names(iana: str, openssl: str | None):
    """OpenSSL supports the mapped names."""
    known = {cipher["name"] for cipher in _all_ciphers()}

    assert openssl == openssl_name(iana)
    assert not openssl or openssl in known


def _all_ciphers() -> list[Any]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context.get_ciphers()


def sasl(
    mechanism: str = "PLAIN", jaas: str = f'{PLAIN} required username="u" password="{SECRET}";', **more: str
) -> dict[str, str]:
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas} | {
        key.replace("_", "."): value for key, value in more.items()
    }


OPTIONS = f'clientId="i" clientSecret="{SECRET}"'
URL = "sasl.oauthbearer.token.endpoint.url"


@pytest.mark.parametrize(
    ("properties", "key", "kind"),
    [
        ({"security.protocol": "TLS"}, "security.protocol", InvalidSettingError),
        (sasl(""), "sasl.mechanism", RefusedSettingError),
        (sasl("GSSAPI"), "sasl.mechanism", RefusedSettingError),
        (sasl("NTLM"), "sasl.mechanism", RefusedSettingError),
        (sasl(jaas=""), "sasl.jaas.config", InvalidSettingError),
        (sasl(jaas=f"{SECRET} required;"), "sasl.jaas.config", SettingError),
        (sasl(jaas=f"x.{SECRET.replace('-', '')} required;"), "sasl.jaas.config", RefusedSettingError),
        (sasl(jaas=f"{OAUTH} required {OPTIONS};"), "sasl.jaas.config", InvalidSettingError),
        (sasl(jaas=f'{PLAIN} required password="{SECRET}";'), "sasl.jaas.config", InvalidSettingError),
        (sasl(jaas=f"{PLAIN} required username='' password='{SECRET}';"), "sasl.jaas.config", InvalidSettingError),
        (sasl(jaas=f"{PLAIN} required username={SECRET};"), "sasl.jaas.config", InvalidSettingError),
        (sasl(sasl_login_class=SECRET), "sasl.login.class", RefusedSettingError),
        (sasl() | {"sasl.client.callback.handler.class": SECRET}, "sasl.client.callback.handler.class", RefusedSettingError),
        (sasl() | {"sasl.login.callback.handler.class": SECRET}, "sasl.login.callback.handler.class", RefusedSettingError),
        (sasl("OAUTHBEARER", f"{OAUTH} required {OPTIONS};"), URL, InvalidSettingError),
        (sasl("OAUTHBEARER", f"{OAUTH} required {OPTIONS};") | {URL: f"ftp://{SECRET}"}, URL, InvalidSettingError),
        (sasl("OAUTHBEARER", f"{OAUTH} required {OPTIONS};") | {URL: f"http://x:{SECRET}"}, URL, InvalidSettingError),
        (sasl("OAUTHBEARER", f"{OAUTH} required {OPTIONS};") | {URL: "file:token"}, URL, InvalidSettingError),
        (sasl("OAUTHBEARER", f"{OAUTH} required clientSecret='{SECRET}';") | {URL: "http://x"}, "sasl.jaas.config", InvalidSettingError),
        (sasl("OAUTHBEARER", f"{OAUTH} required {OPTIONS} extension_auth='{SECRET}';") | {URL: "http://x"}, "sasl.jaas.config", InvalidSettingError),
        (sasl("OAUTHBEARER", f"{OAUTH} required {OPTIONS};") | {URL: "http://x", "sasl.login.refresh.window.factor": SECRET}, "sasl.login.refresh.window.factor", InvalidSettingError),
        (sasl("OAUTHBEARER", f"{OAUTH} required {OPTIONS};") | {"sasl.login.callback.handler.class": SECRET}, "sasl.login.callback.handler.class", RefusedSettingError),
        (sasl("OAUTHBEARER", f"{OAUTH} required unsecuredLoginNumberClaim_x='{SECRET}';"), "sasl.jaas.config", InvalidSettingError),
        (sasl("OAUTHBEARER", f"{OAUTH} required unsecuredLoginStringClaim_x='{SECRET}';"), "sasl.jaas.config", InvalidSettingError),
        ({"security.protocol": "SSL", "ssl.engine.factory.class": SECRET}, "ssl.engine.factory.class", RefusedSettingError),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": SECRET}, "ssl.endpoint.identification.algorithm", RefusedSettingError),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": SECRET}, "ssl.enabled.protocols", InvalidSettingError),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.1"}, "ssl.enabled.protocols", RefusedSettingError),
        ({"security.protocol": "SSL", "ssl.cipher.suites": SECRET}, "ssl.cipher.suites", InvalidSettingError),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.2", "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}, "ssl.cipher.suites", InvalidSettingError),
        ({"security.protocol": "SSL", "ssl.keystore.key": signed("a").key_pem(), "ssl.keystore.certificate.chain": signed("b").pem}, "ssl.keystore.key", InvalidSettingError),
        ({"security.protocol": "SSL", "ssl.keystore.key": signed("a").key_pem("x"), "ssl.keystore.certificate.chain": signed("a").pem, "ssl.key.password": SECRET}, "ssl.key.password", InvalidSettingError),
        ({"security.protocol": "SSL", "ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----" + "aHVudGVyMg==" + "-----END CERTIFICATE-----"}, "ssl.truststore", InvalidSettingError),
    ],
)  # fmt: skip
def test_the_error_names_an_invalid_setting_without_showing_secrets(
    properties: dict[str, str], key: str, kind: type[MirrorFlowError]
):
    """The error, its repr and its causes do not contain a value."""
    with pytest.raises(kind) as raised:
        build_security(properties, cluster="A")

    assert raised.value.key == key  # type: ignore[attr-defined]
    shown, error = "", raised.value
    while error is not None and not (shown and error.__suppress_context__):
        shown += str(error) + repr(error)
        error = error.__cause__  # type: ignore[assignment]
    assert "hunter2" not in shown
    assert "PRIVATE KEY" not in shown


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_password_mechanisms_create_a_client_for_each_connection(mechanism: str):
    """No repr or warning shows a credential."""
    security = build_security(sasl(mechanism), cluster="A")
    client, other = security.sasl_client("b"), security.sasl_client("c")

    assert client is not None
    assert client is not other
    assert (client.mechanism, security.ssl_context) == (mechanism, None)
    assert "hunter2" not in repr(security) + repr(client) + " ".join(security.warnings)


def test_plaintext_ignores_tls_and_sasl_settings():
    """As in Java, settings of unused protocols are not read."""
    security = build_security(
        {"ssl.engine.factory.class": "x", "ssl.keystore.location": "/absent", "sasl.mechanism": "x"},
        cluster="A",
    )

    assert (security.ssl_context, security.sasl_client("b"), security.warnings) == (None, None, ())


def test_ignored_settings_cause_warnings():
    """A Java provider does not change the protocol. The warning names its key."""
    warnings = build_security(
        {"security.protocol": "ssl", "ssl.provider": "BC", "ssl.keymanager.algorithm": "x"}, cluster="A"
    ).warnings

    assert [warning.split(" ")[0] for warning in warnings] == ["ssl.keymanager.algorithm", "ssl.provider"]


def test_every_key_has_a_verdict_with_a_reason():
    """The settings page is generated from this table."""
    assert {verdict(key)[0] for key in SECURITY_KEYS} == {"honoured", "mapped", "ignored", "refused"}
    assert [key for key in SECURITY_KEYS if verdict(key)[0] != "honoured" and not verdict(key)[1]] == []


@pytest.mark.parametrize("host", ["localhost", "localhost."])
def test_a_trailing_dot_of_a_broker_name_is_ignored_for_its_certificate(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
):
    """Helm charts advertise such names to save DNS lookups."""
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda name, *more, **named: resolve(name.rstrip("."), *more, **named)
    )
    identity = signed()
    (tmp_path / "server.pem").write_text(identity.key_pem() + identity.pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.pem")
    security = build_security(tls(stores, "trust.pem"), cluster="A")

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()  # the handshake is complete

    async def connect() -> None:
        server_socket = await asyncio.start_server(close, "127.0.0.1", 0, ssl=server)
        async with server_socket:
            port = server_socket.sockets[0].getsockname()[1]
            await open_connection(
                host, port, client_id="tester", security=security, cluster="A", timeout_s=20
            )

    with pytest.raises(ConnectionLostError):
        asyncio.run(connect())
