"""Whom the operator believes when it asks connectors over TLS: the authorities of one file, as it is now.

The file is a mounted Secret or ConfigMap of the operator's own pod, so no right on Secrets is needed, and it may be renewed
under it. What cannot be read then is told once, and those of before are believed.
"""

import logging
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from mirrorflow_operator.errors import SettingsError
from mirrorflow_operator.polling.asking import Verified

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Authorities:
    """*file* is PEM. Raises SettingsError where it cannot be read at first."""

    file: str
    _context: ssl.SSLContext = field(init=False)
    _seen: tuple[int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        """Reads it."""
        try:
            self._seen = self._look()
            self._context = _believing(self.file)
        except OSError as error:  # ssl.SSLError is one
            raise SettingsError(
                "MIRRORFLOW_PROGRESS_CA", self.file, f"name a file of certificates in PEM ({error})"
            ) from error

    def verified(self, name: str) -> Verified:
        """A certificate of these authorities, for *name*."""
        try:
            seen = self._look()
            if seen != self._seen:
                self._seen = seen  # whatever it holds is looked at once
                self._context = _believing(self.file)
        except OSError as error:
            log.warning("The authorities of connectors stay those of before: %s: %s", self.file, error)
        return Verified(context=self._context, name=name)

    def _look(self) -> tuple[int, int, int]:
        found = Path(self.file).stat()
        return found.st_mtime_ns, found.st_ino, found.st_size


def _believing(file: str) -> ssl.SSLContext:
    # Not create_default_context: its strictness (3.13) refuses authorities without a key identifier, which many own ones lack.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=file)
    return context
