"""A node calls another over TLS and verifies the configured name, not the address that it calls."""

import asyncio
import ssl

import pytest

from mirrorflow_core.errors import UnreachableError
from mirrorflow_replicator.http.server import HttpServer
from mirrorflow_replicator.http.server_tls import server_context
from mirrorflow_replicator.worker.peer_client import call
from tests.unit.http.reports import view
from tests.unit.kafka.certificates import authority, signed

NAME = "east-to-west-source.mirrors.svc"


def answered(server_name: str) -> int:
    """The HTTP status that a node with a certificate for NAME alone gives who expects *server_name*."""
    pods = signed(NAME, names=(NAME,))
    own = {"ssl.keystore.key": pods.key_pem(), "ssl.keystore.certificate.chain": pods.pem}

    async def main() -> int:
        context, _ = server_context(own)
        server = await HttpServer.start(["https://127.0.0.1:0"], view, tls=context)
        try:
            trusting = ssl.create_default_context(cadata=authority().pem)
            answer = await call(
                server.addresses[0], "GET", "/healthz", tls=trusting, server_name=server_name, timeout_s=10
            )
            return answer.status
        finally:
            await server.close()

    return asyncio.run(main())


def test_pods_that_share_a_certificate_are_known_by_the_name_in_it():
    assert answered(NAME) == 200


@pytest.mark.parametrize("name", ["", "east-to-west-checkpoint.mirrors.svc"])
def test_who_has_no_certificate_for_the_name_is_not_asked(name: str):
    """Without a name the address counts, which no certificate of pods has."""
    with pytest.raises(UnreachableError, match="certificate"):
        answered(name)
