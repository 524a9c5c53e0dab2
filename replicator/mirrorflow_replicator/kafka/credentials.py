"""A client's properties and security as of now: secrets rotate without a restart (KIP-710).

References are resolved at every call; what is made of them is `security`'s.
"""

import os
from collections.abc import Callable, Mapping

from mirrorflow_replicator.kafka.roles import SecurityLike
from mirrorflow_replicator.kafka.security import build_security
from mirrorflow_replicator.settings import ClientSettings

Properties = Mapping[str, str]
Resolve = Callable[[Properties], Properties]

_SECURITY_PREFIXES = ("security.", "sasl.", "ssl.")


class Credentials:
    """Those of one client. Raises SettingError whenever a secret cannot be resolved or used."""

    def __init__(self, settings: ClientSettings, resolve: Resolve) -> None:
        self._settings = settings
        self._resolve = resolve
        self._security: SecurityLike | None = None
        self._security_key: object = None

    def resolved(self) -> Properties:
        """The client's properties, references resolved."""
        return self._resolve(self._settings.properties)

    def security(self) -> SecurityLike | None:
        """Security by today's properties and files; the last one if nothing changed, as a TLS context is dear."""
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
    """Which file that is, when it was written and how large it is; None if it cannot be seen (`security` says why).

    Links are followed: kubelet brings a new volume's content by turning one link.
    """
    try:
        found = os.stat(path)  # noqa: PTH116 of a path that need not exist
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
