"""Provides a client's current security, and replaces its connections, one by one, when secrets have changed.

    poll ──> same secrets as every connection was opened with? ──yes──> sleep
                        │ no
                        └──> open the next connection with the new ones ──accepted──> it replaces the old one
                                          └──refused──> logged once; the old connections stay; retried

References to secrets are resolved at every call. An old connection is retired only after its replacement is open and
authenticated. It is closed when its last request has a response (`Connection.retire`), so the outcome of each write is known.
`http.server_tls` does the same for the HTTPS listeners.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping

from mirrorflow_core.errors import MirrorFlowError, UnresolvedReferenceError
from mirrorflow_core.settings import ClientSettings
from mirrorflow_kafka.client.pool import ConnectionPool
from mirrorflow_kafka.security.client_security import ClientSecurity, build_security

Properties = Mapping[str, str]
Resolve = Callable[[Properties], Properties]

# The addresses, too: those of a cloud have its region.
_SECURITY_PREFIXES = ("security.", "sasl.", "ssl.", "bootstrap.servers")
# Secrets are small files, read in under a millisecond; the kubelet takes up to a minute to update one.
SECRETS_POLL_S = 5.0
# A broker may get a new password later than this client, and one that counts failures must not lock the
# client out.
REFUSED_AGAIN_S = 20.0
log = logging.getLogger("mirrorflow.secrets")


class Credentials:
    """The credentials of one client. Its methods raise SettingError if a secret cannot be resolved or used."""

    def __init__(self, settings: ClientSettings, resolve: Resolve) -> None:
        self._settings = settings
        self._resolve = resolve
        self._security: ClientSecurity | None = None
        self._security_key: object = None

    def resolved(self) -> Properties:
        """Returns the client's properties with references resolved. Raises UnresolvedReferenceError with the cluster."""
        try:
            return self._resolve(self._settings.properties)
        except UnresolvedReferenceError as error:
            raise UnresolvedReferenceError(
                key=error.key,
                reference=error.reference,
                problem=error.problem,
                cluster=self._settings.alias,
            ) from None

    def security(self) -> ClientSecurity | None:
        """Returns the security for the current properties and files; None for PLAINTEXT.

        It is cached while nothing changes, because a TLS context is expensive.
        """
        resolved = self.resolved()
        if resolved.get("security.protocol", "PLAINTEXT").upper() == "PLAINTEXT":
            return None
        relevant = {key: value for key, value in resolved.items() if key.startswith(_SECURITY_PREFIXES)}
        versions = {
            value: file_version(value) for key, value in relevant.items() if key.endswith(".location")
        }
        if (relevant, versions) != self._security_key:
            self._security = build_security(relevant, cluster=self._settings.alias)
            self._security_key = (relevant, versions)
        return self._security


def file_version(path: str) -> tuple[int, int, int] | None:
    """Returns what differs after a change of the file: inode, modification time (ns) and size; None if it cannot be read.

    Links are followed, because the kubelet updates a volume by switching one symlink.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 of a path that need not exist
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


class SecretRotation:
    """Watches the secrets of one cluster's client. `run` ends only by cancellation; `problem` can always be read."""

    def __init__(
        self, alias: str, pool: ConnectionPool, security: Callable[[], ClientSecurity | None]
    ) -> None:
        # Why the current secrets are not used; None while they are.
        self.problem: Exception | None = None
        self._alias = alias
        self._pool = pool
        self._security = security
        self._refused: ClientSecurity | None = None  # the security that was refused last
        self._try_at = 0.0

    @property
    def warnings(self) -> tuple[str, ...]:
        """The problem as a message, if there is one."""
        return () if self.problem is None else (self._sentence(self.problem),)

    async def run(self) -> None:
        """Polls the secrets every SECRETS_POLL_S seconds until cancelled."""
        while True:
            await asyncio.sleep(SECRETS_POLL_S)
            await self.check()

    async def check(self) -> None:
        """Replaces connections that do not use the current secrets, if brokers accept these.

        An unexpected error is a problem of these secrets, too: the next ones may be read and accepted.
        """
        now = asyncio.get_running_loop().time
        security = None
        try:
            security = self._security()
            if security is self._refused and now() < self._try_at:
                return
            replaced = await self._pool.replace_all_but(security)
        except Exception as error:  # noqa: BLE001 whatever a config provider raises must not end the rotation
            self._refused, self._try_at = security, now() + REFUSED_AGAIN_S
            if self.problem is None or str(self.problem) != str(error):
                log.warning("%s", self._sentence(error))
            self.problem = error
            return
        self._refused, self.problem = None, None
        if replaced:
            log.info("Cluster %s: %d connections now use the rotated secrets", self._alias, replaced)

    def _sentence(self, error: Exception) -> str:
        # The text of an unexpected error may contain a secret.
        why = str(error) if isinstance(error, MirrorFlowError) else f"an unexpected {type(error).__name__}"
        return f"Cluster {self._alias}: the rotated secrets cannot be used, and connections opened by the old ones stay: {why}"
