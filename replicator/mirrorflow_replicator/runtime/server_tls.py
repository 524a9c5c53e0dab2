"""The TLS of our own HTTP listeners, from Java's `ssl.*` as Connect's REST server reads them (RestServer, SSLUtils).

The server's key and chain come from `ssl.keystore.*`, whom it trusts from `ssl.truststore.*`, both in every form that
clients may use; `ssl.client.auth` asks for a certificate of who calls. `ServerTls` follows the files: who connects after a
certificate was renewed is shown the new one.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping

from mirrorflow_replicator.errors import InvalidSettingError, SettingError
from mirrorflow_replicator.kafka.credentials import stamp
from mirrorflow_replicator.kafka.keystores import client_key, trusted_certificates
from mirrorflow_replicator.kafka.rotation import LOOK_S
from mirrorflow_replicator.kafka.tls import load_key, trust
from mirrorflow_replicator.kafka.tls_versions import choose_ciphers, choose_versions

_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

log = logging.getLogger("mirrorflow.secrets")


class ServerTls:
    """The TLS of the listeners, by *resolved* properties as of now. Raises SettingError where the first ones are wrong."""

    def __init__(self, resolved: Callable[[], Mapping[str, str]]) -> None:
        self._resolved = resolved
        self._seen = self._look()
        self._newest, self.warnings = server_context(self._seen[0])
        self.context = self._newest  # what the listeners are given; it hands each caller on to the newest
        self.context.sni_callback = self._hand_on
        self._told = ""

    async def follow(self) -> None:
        """Look for renewed certificates until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Take over what has changed; what cannot be used is told once, and the last good one goes on being shown."""
        try:
            seen = self._look()
            if seen == self._seen:
                return
            self._newest, _ = server_context(seen[0])
        except SettingError as error:
            if str(error) != self._told:
                self._told = str(error)
                log.warning("HTTPS goes on with the certificate of before: %s", error)
            return
        self._seen, self._told = seen, ""
        log.info("HTTPS now uses the renewed certificate")

    def _look(self) -> tuple[Mapping[str, str], Mapping[str, object]]:
        properties = dict(self._resolved())
        return properties, {
            key: stamp(value) for key, value in properties.items() if key.endswith(".location")
        }

    def _hand_on(self, caller: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        # Called with every hello, whether or not it names a server.
        caller.context = self._newest


def server_context(properties: Mapping[str, str]) -> tuple[ssl.SSLContext, tuple[str, ...]]:
    """A server's context and what must be warned of. Raises SettingError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    warnings = [*choose_versions(context, properties), *choose_ciphers(context, properties)]
    own = client_key(properties)
    if own is None:
        raise InvalidSettingError(
            key="ssl.keystore.location",
            problem="it is missing, and a listener is https",
            action="name the server's keystore, or write http:// listeners only",
        )
    load_key(context, own)
    written = properties.get("ssl.client.auth", "none").strip().lower()
    if written not in _CLIENT_AUTH:
        raise InvalidSettingError(
            key="ssl.client.auth",
            problem=f"{written!r} is not known",
            action="write " + " or ".join(_CLIENT_AUTH),
        )
    if _CLIENT_AUTH[written] is not ssl.CERT_NONE:
        _ask_for_certificates(context, properties, _CLIENT_AUTH[written])
    return context, tuple(warnings)


def _ask_for_certificates(
    context: ssl.SSLContext, properties: Mapping[str, str], mode: ssl.VerifyMode
) -> None:
    """Without a trust store the public authorities would count, and anyone can have a certificate of theirs."""
    anchors = trusted_certificates(properties)
    if anchors is None:
        raise InvalidSettingError(
            key="ssl.truststore.location",
            problem="it is missing, and ssl.client.auth asks for certificates",
            action="name the store of the authorities that are trusted",
        )
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trust(context, anchors)
    context.verify_mode = mode
