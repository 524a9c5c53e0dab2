"""HTTPS of our own listeners: every form of keystore, certificates of callers, and sentences for what is wrong."""

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
    """The first line of the answer to GET /healthz over HTTPS."""

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


def refused(properties: dict[str, str], client: ssl.SSLContext) -> bytes:
    """What comes where nothing should: by TLS 1.3 a client learns of its refusal only when it reads."""
    try:
        return status(properties, client)
    except (ssl.SSLError, ConnectionError):
        return b""


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority().pem)


def knowing(folder: Path) -> ssl.SSLContext:
    """A client with a certificate of its own."""
    context = trusting()
    own = folder / "client.pem"
    own.write_text(signed("mirror").key_pem() + signed("mirror").pem)
    context.load_cert_chain(own)
    return context


@pytest.mark.parametrize("store", [pem_inline, pem_file, pkcs12_file])
def test_every_form_of_keystore_serves_https(store, tmp_path: Path):
    """A client that trusts the authority is answered."""
    assert b"HTTP/1.1 200 OK\r\n" == status(store(tmp_path), trusting())


def test_a_required_certificate_is_asked_for(tmp_path: Path):
    """Who has one is answered, who has none is not."""
    properties = {
        **pem_inline(tmp_path),
        "ssl.client.auth": "required",
        "ssl.truststore.certificates": authority().pem,
    }

    assert b"HTTP/1.1 200 OK\r\n" == status(properties, knowing(tmp_path))
    assert b"" == refused(properties, trusting())


def test_a_requested_certificate_may_be_missing(tmp_path: Path):
    """`requested` answers either."""
    properties = {
        **pem_inline(tmp_path),
        "ssl.client.auth": "requested",
        "ssl.truststore.certificates": authority().pem,
    }

    assert b"HTTP/1.1 200 OK\r\n" == status(properties, trusting())


def test_only_the_versions_that_are_set_are_offered(tmp_path: Path):
    """`ssl.enabled.protocols` counts for the server too."""
    client = trusting()
    client.maximum_version = ssl.TLSVersion.TLSv1_2

    assert b"" == refused(pem_inline(tmp_path) | {"ssl.enabled.protocols": "TLSv1.3"}, client)


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
def test_what_is_wrong_is_named(changes: dict[str, str], key: str, tmp_path: Path):
    """One sentence that begins with the setting."""
    with pytest.raises(SettingError, match=key.replace(".", r"\.")):
        server_context(pem_inline(tmp_path) | changes)


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    """With its path, and without a traceback."""
    with pytest.raises(InvalidSettingError, match=r"none\.p12 cannot be read"):
        server_context({"ssl.keystore.location": str(tmp_path / "none.p12")})


def test_a_renewed_certificate_is_shown_to_who_comes_next(tmp_path: Path):
    """By the same listener, to whom names no server as well; a file that is none changes nothing, and heals by itself."""
    file = tmp_path / "server.pem"
    file.write_text(signed("first").key_pem() + signed("first").pem)
    tls = ServerTls(lambda: {"ssl.keystore.location": str(file), "ssl.keystore.type": "PEM"})

    async def shown(port: int, name: str | None) -> bytes:
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name or "")
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return bytes(found)

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
                    assert ssl.PEM_cert_to_DER_cert(signed(expected).pem) == await shown(port, name)
        finally:
            await server.close()

    asyncio.run(main())
