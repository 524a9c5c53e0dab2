"""HTTPS listeners: forms of keystores, client certificates, errors, and renewed certificates."""

import asyncio
import ssl
from pathlib import Path

import pytest

from mirrorflow_core.errors import InvalidSettingError, SettingError
from mirrorflow_replicator.http.server import HttpServer
from mirrorflow_replicator.http.server_tls import ServerTls, server_context
from tests.unit.http.reports import view
from tests.unit.kafka.certificates import authority, signed

PASSWORD = "store-secret"
WAIT_S = 300.0


def pem_inline(_: Path) -> dict[str, str]:
    server = signed()
    return {"ssl.keystore.key": server.key_pem(), "ssl.keystore.certificate.chain": server.pem}


def pem_file(folder: Path) -> dict[str, str]:
    file = folder / "server.pem"
    file.write_text(signed().key_pem(PASSWORD) + signed().pem)
    return {
        "ssl.keystore.location": str(file),
        "ssl.keystore.type": "PEM",
        "ssl.key.password": PASSWORD,
    }


def pkcs12_file(folder: Path) -> dict[str, str]:
    file = folder / "server.p12"
    file.write_bytes(signed().pkcs12(PASSWORD, authority()))
    return {"ssl.keystore.location": str(file), "ssl.keystore.password": PASSWORD}


def status(properties: dict[str, str], client: ssl.SSLContext) -> bytes:
    """The status line of the response to GET /healthz over HTTPS."""

    async def main() -> bytes:
        context, _ = server_context(properties)
        server = await HttpServer.start(["https://127.0.0.1:0"], view, tls=context)
        try:
            async with asyncio.timeout(WAIT_S):
                port = int(server.addresses[0].rpartition(":")[2])
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
                line = await reader.readline()
                writer.close()
                return line
        finally:
            await server.close()

    return asyncio.run(main())


def status_or_nothing(properties: dict[str, str], client: ssl.SSLContext) -> bytes:
    """Returns the status line, or nothing if the server refuses the client.

    In TLS 1.3, a client detects the refusal only when it reads.
    """
    try:
        return status(properties, client)
    except (ssl.SSLError, ConnectionError):
        return b""


def anonymous_client() -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority().pem)


def client_with_certificate(folder: Path) -> ssl.SSLContext:
    """The TLS context of a client with a certificate."""
    context = anonymous_client()
    own = folder / "client.pem"
    own.write_text(signed("mirror").key_pem() + signed("mirror").pem)
    context.load_cert_chain(own)
    return context


@pytest.mark.parametrize("store", [pem_inline, pem_file, pkcs12_file])
def test_https_works_with_each_form_of_keystore(store, tmp_path: Path):
    assert b"HTTP/1.1 200 OK\r\n" == status(store(tmp_path), anonymous_client())


def test_a_client_without_a_required_certificate_is_refused(tmp_path: Path):
    properties = {
        **pem_inline(tmp_path),
        "ssl.client.auth": "required",
        "ssl.truststore.certificates": authority().pem,
    }

    assert b"HTTP/1.1 200 OK\r\n" == status(properties, client_with_certificate(tmp_path))
    assert b"" == status_or_nothing(properties, anonymous_client())


def test_a_requested_certificate_may_be_missing(tmp_path: Path):
    properties = {
        **pem_inline(tmp_path),
        "ssl.client.auth": "requested",
        "ssl.truststore.certificates": authority().pem,
    }

    assert b"HTTP/1.1 200 OK\r\n" == status(properties, anonymous_client())


def test_only_enabled_tls_versions_are_accepted(tmp_path: Path):
    """`ssl.enabled.protocols` applies to the server too."""
    client = anonymous_client()
    client.maximum_version = ssl.TLSVersion.TLSv1_2

    assert b"" == status_or_nothing(pem_inline(tmp_path) | {"ssl.enabled.protocols": "TLSv1.3"}, client)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"ssl.keystore.key": "", "ssl.keystore.certificate.chain": ""}, "ssl.keystore.location"),
        ({"ssl.client.auth": "always"}, "ssl.client.auth"),
        ({"ssl.client.auth": "required"}, "ssl.truststore.location"),
        ({"ssl.keystore.key": signed("other").key_pem()}, "ssl.keystore.key"),
        ({"ssl.enabled.protocols": "TLSv9"}, "ssl.enabled.protocols"),
    ],
)
def test_the_error_names_the_invalid_tls_setting(changes: dict[str, str], key: str, tmp_path: Path):
    with pytest.raises(SettingError, match=key.replace(".", r"\.")):
        server_context(pem_inline(tmp_path) | changes)


def test_the_error_names_a_missing_keystore_file(tmp_path: Path):
    with pytest.raises(InvalidSettingError, match=r"none\.p12 cannot be read"):
        server_context({"ssl.keystore.location": str(tmp_path / "none.p12")})


def test_new_connections_get_a_renewed_certificate(tmp_path: Path):
    """Clients with and without SNI get the renewed certificate. An invalid file is ignored until it is valid again."""
    file = tmp_path / "server.pem"
    file.write_text(signed("first").key_pem() + signed("first").pem)
    tls = ServerTls(lambda: {"ssl.keystore.location": str(file), "ssl.keystore.type": "PEM"})

    async def peer_certificate(port: int, name: str | None) -> bytes:
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name or "")
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return bytes(certificate)

    async def main() -> None:
        server = await HttpServer.start(["https://127.0.0.1:0"], view, tls=tls.context)
        try:
            port = int(server.addresses[0].rpartition(":")[2])
            for written, expected in (
                (signed("second").key_pem() + signed("second").pem, "second"),
                ("no certificate", "second"),
                (signed("third").key_pem() + signed("third").pem, "third"),
            ):
                file.write_text(written)
                tls.reload()
                for name in ("localhost", None):
                    assert ssl.PEM_cert_to_DER_cert(signed(expected).pem) == await peer_certificate(
                        port, name
                    )
        finally:
            await server.close()

    asyncio.run(main())
