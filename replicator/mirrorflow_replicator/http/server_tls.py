"""Reads the TLS settings of the HTTPS listeners, and applies renewed certificates without a restart.

Settings are Java's `ssl.*` as in Connect's REST server (RestServer, SSLUtils), in every form that clients may
use. Connections opened after a certificate was renewed get the new one.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping

from mirrorflow_core.errors import InvalidSettingError, SettingError
from mirrorflow_kafka.security.keystores import client_key, trusted_certificates
from mirrorflow_kafka.security.secret_rotation import SECRETS_POLL_S, file_version
from mirrorflow_kafka.security.tls import choose_ciphers, choose_versions, load_key, trust

_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

secrets_log = logging.getLogger("mirrorflow.secrets")


class ServerTls:
    """The TLS of the listeners, from the current *resolved* properties.

    Raises SettingError if the first ones are wrong.
    """

    def __init__(self, resolved: Callable[[], Mapping[str, str]]) -> None:
        self._resolved = resolved
        self._seen = self._read()
        self._newest, self.warnings = server_context(self._seen[0])
        self.context = self._newest  # passed to the listeners; it switches each connection to the newest
        self.context.sni_callback = self._use_newest
        self._reported: str | None = None  # as last logged

    async def follow(self) -> None:
        """Checks for renewed certificates until cancelled."""
        while True:
            await asyncio.sleep(SECRETS_POLL_S)
            self.reload()

    def reload(self) -> None:
        """Applies changed files; if they are unusable, logs that once and keeps the last good certificate."""
        try:
            seen = self._read()
            if seen == self._seen:
                return
            self._newest, _ = server_context(seen[0])
        except SettingError as error:
            if str(error) != self._reported:
                self._reported = str(error)
                secrets_log.warning("HTTPS keeps using the previous certificate: %s", error)
            return
        self._seen, self._reported = seen, None
        secrets_log.info("HTTPS now uses the renewed certificate")

    def _read(self) -> tuple[Mapping[str, str], Mapping[str, object]]:
        properties = dict(self._resolved())
        return properties, {
            key: file_version(value) for key, value in properties.items() if key.endswith(".location")
        }

    def _use_newest(self, caller: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        # Called at every ClientHello, with or without a server name.
        caller.context = self._newest


def server_context(properties: Mapping[str, str]) -> tuple[ssl.SSLContext, tuple[str, ...]]:
    """Returns a server's context and its warnings. Raises SettingError."""
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
        _request_client_certificates(context, properties, _CLIENT_AUTH[written])
    return context, tuple(warnings)


def _request_client_certificates(
    context: ssl.SSLContext, properties: Mapping[str, str], mode: ssl.VerifyMode
) -> None:
    """Makes *context* request client certificates. Raises InvalidSettingError without a trust store.

    Without one the public authorities would be trusted, which issue certificates to anyone.
    """
    anchors = trusted_certificates(properties)
    if anchors is None:
        raise InvalidSettingError(
            key="ssl.truststore.location",
            problem="it is missing, and ssl.client.auth requests certificates",
            action="name the truststore with the trusted authorities",
        )
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trust(context, anchors)
    context.verify_mode = mode
