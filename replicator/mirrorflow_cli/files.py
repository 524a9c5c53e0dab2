"""The files of one connector's process: both property files, and where it writes the address of its HTTP server.

They hold references, never a resolved secret, and are readable by this user alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mirrorflow_replicator.connect.properties import format_properties


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorFiles:
    """Three files in *folder*, named by the connector."""

    folder: Path
    name: str

    @property
    def worker(self) -> Path:
        """What `standalone` takes as worker.properties."""
        return self.folder / f"{self.name}.worker.properties"

    @property
    def connector(self) -> Path:
        """What `standalone` takes as connector.properties."""
        return self.folder / f"{self.name}.connector.properties"

    @property
    def http(self) -> Path:
        """Where the process says its HTTP address (MIRRORFLOW_HTTP_FILE)."""
        return self.folder / f"{self.name}.url"

    def write(self, worker: Mapping[str, str], connector: Mapping[str, str]) -> None:
        """Write both property files."""
        for path, properties in ((self.worker, worker), (self.connector, connector)):
            path.touch(mode=0o600)
            path.write_text(format_properties(properties), encoding="ascii")

    def url(self) -> str | None:
        """Where the process's HTTP server listens, once it has said so."""
        try:
            return self.http.read_text(encoding="utf-8").strip() or None
        except FileNotFoundError:
            return None

    def forget_url(self) -> None:
        """The address of a process that is gone must not be asked for the next one's progress."""
        self.http.unlink(missing_ok=True)
