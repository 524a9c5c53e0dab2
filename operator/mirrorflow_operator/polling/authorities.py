"""Holds the trusted CA certificates for polling connectors over TLS, and reloads their file when it changes.

The file is mounted from a Secret or ConfigMap into the operator's own pod, so the operator needs no right on
Secrets, and the file may be renewed while it runs. If a changed file cannot be loaded, this is logged once
and the previous certificates stay in use.
"""

import logging
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from mirrorflow_operator.errors import SettingsError
from mirrorflow_operator.polling.progress_request import Verified

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Authorities:
    """The CA certificates of *file* (PEM).

    Raises SettingsError where the file cannot be read at the start.
    """

    file: str
    _context: ssl.SSLContext = field(init=False)
    _seen: tuple[int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        """Loads the file."""
        try:
            self._seen = self._look()
            self._context = _believing(self.file)
        except OSError as error:  # ssl.SSLError is one
            raise SettingsError(
                "MIRRORFLOW_PROGRESS_CA", self.file, f"name a file of certificates in PEM ({error})"
            ) from error

    def verified(self, name: str) -> Verified:
        """Returns the TLS parameters to poll a pod with a certificate for *name*; reloads a changed file."""
        try:
            seen = self._look()
            if seen != self._seen:
                self._seen = seen  # before loading, so that a broken file is tried only once
                self._context = _believing(self.file)
        except OSError as error:
            log.warning("The authorities of connectors stay those of before: %s: %s", self.file, error)
        return Verified(context=self._context, name=name)

    def _look(self) -> tuple[int, int, int]:
        found = Path(self.file).stat()
        return found.st_mtime_ns, found.st_ino, found.st_size


def _believing(file: str) -> ssl.SSLContext:
    # Not create_default_context: since Python 3.13 it is strict and refuses CAs without a key identifier,
    # which many private CAs lack.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=file)
    return context
