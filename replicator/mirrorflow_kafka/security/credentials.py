"""Provides a client's current properties and security, so that secrets rotate without a restart (KIP-710).

References to secrets are resolved at every call; `security.client_security` builds the security from them.
"""

import os
from collections.abc import Callable, Mapping

from mirrorflow_core.settings import ClientSettings
from mirrorflow_kafka.client.handshake import SecurityLike
from mirrorflow_kafka.security.client_security import build_security

Properties = Mapping[str, str]
Resolve = Callable[[Properties], Properties]

_SECURITY_PREFIXES = ("security.", "sasl.", "ssl.")


class Credentials:
    """The credentials of one client.

    Its methods raise SettingError if a secret cannot be resolved or used.
    """

    def __init__(self, settings: ClientSettings, resolve: Resolve) -> None:
        self._settings = settings
        self._resolve = resolve
        self._security: SecurityLike | None = None
        self._security_key: object = None

    def resolved(self) -> Properties:
        """Return the client's properties with references resolved."""
        return self._resolve(self._settings.properties)

    def security(self) -> SecurityLike | None:
        """Return the security for the current properties and files; None for PLAINTEXT.

        It is cached while nothing changes, because a TLS context is expensive.
        """
        resolved = self.resolved()
        if resolved.get("security.protocol", "PLAINTEXT").upper() == "PLAINTEXT":
            return None
        relevant = {key: value for key, value in resolved.items() if key.startswith(_SECURITY_PREFIXES)}
        stamps = {value: stamp(value) for key, value in relevant.items() if key.endswith(".location")}
        if (relevant, stamps) != self._security_key:
            self._security = build_security(relevant, cluster=self._settings.alias)
            self._security_key = (relevant, stamps)
        return self._security


def stamp(path: str) -> tuple[int, int, int] | None:
    """Return inode, modification time (ns) and size of a file; None if it cannot be read.

    Links are followed, because the kubelet updates a volume by switching one symlink.
    """
    try:
        found = os.stat(path)  # noqa: PTH116 of a path that need not exist
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
