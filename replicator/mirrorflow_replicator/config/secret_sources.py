"""Kafka's config providers on this host: environment variables, properties files, files of a directory.

`allowlist.pattern` (KIP-887) and `allowed.paths` (KIP-993) limit what can be read. `references` parses
references, and `providers` resolves them. No error contains a value.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.properties import parse_properties
from mirrorflow_core.java.references import Reference
from mirrorflow_core.naming.patterns import SettingPattern

# Java's limit is its heap; a secret or properties file larger than this means a wrong path (a device, a log).
SOURCE_SIZE_MAX_BYTES = 4 * 1024 * 1024


class SecretSource(Protocol):
    """A source from which a provider reads values."""

    def lookup(self, reference: Reference) -> str:
        """Returns the value. Raises LookupError with the reason if there is none."""


@dataclass(frozen=True, slots=True)
class EnvironmentSource:
    """EnvVarConfigProvider: `${env:NAME}`."""

    allowed: SettingPattern

    def lookup(self, reference: Reference) -> str:
        """Returns the value. Raises LookupError with the reason if there is none."""
        if reference.path:
            raise LookupError("variables of the environment have no path; write ${env:NAME}")
        if not self.allowed.matches(reference.key):
            raise LookupError("allowlist.pattern does not admit this variable")
        try:
            return os.environ[reference.key]
        except KeyError:
            raise LookupError("the environment has no such variable") from None


@dataclass(frozen=True, slots=True)
class FileSource:
    """FileConfigProvider (a key of a properties file) and DirectoryConfigProvider (a file of a directory)."""

    allowed: tuple[Path, ...] | None
    whole: bool

    def lookup(self, reference: Reference) -> str:
        """Returns the value. Raises LookupError with the reason if there is none."""
        if not reference.path:
            raise LookupError("the path is missing")
        if self.whole:
            if Path(reference.key).name != reference.key:
                raise LookupError("the key must be the plain name of a file")
            return self._read(Path(reference.path) / reference.key)
        text = self._read(Path(reference.path))
        try:
            return parse_properties(text)[reference.key]
        except InvalidSettingError:
            raise LookupError("the file is not a properties file") from None
        except KeyError:
            raise LookupError("the file has no such key") from None

    def _read(self, path: Path) -> str:
        # Compare real paths: a link or `..` out of the allowed paths would read any file of the pod.
        real = path.resolve()
        if self.allowed is not None and not any(real.is_relative_to(root) for root in self.allowed):
            raise LookupError("the path is outside of allowed.paths")
        try:
            with real.open("rb") as file:
                data = file.read(SOURCE_SIZE_MAX_BYTES + 1)
        except OSError as error:
            raise LookupError(f"the file cannot be read ({error.strerror})") from None
        if len(data) > SOURCE_SIZE_MAX_BYTES:
            raise LookupError(f"the file is larger than {SOURCE_SIZE_MAX_BYTES} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise LookupError("the file is not UTF-8 text") from None
