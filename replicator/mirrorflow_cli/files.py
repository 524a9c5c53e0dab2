"""The files of a flow's process: property files of the worker and of each connector, and where it writes the address of its HTTP server.

They hold references, never a resolved secret, and are readable by this user alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mirrorflow_replicator.connect.properties import format_properties


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFiles:
    """The files in *folder*; *connectors* are names."""

    folder: Path
    connectors: tuple[str, ...]

    @property
    def worker(self) -> Path:
        """What `standalone` takes as worker.properties."""
        return self.folder / "worker.properties"

    def connector(self, name: str) -> Path:
        """What `standalone` takes as connector.properties of the connector *name*."""
        return self.folder / f"{name}.properties"

    @property
    def arguments(self) -> tuple[str, ...]:
        """What `standalone` takes."""
        return (str(self.worker), *(str(self.connector(name)) for name in self.connectors))

    @property
    def http(self) -> Path:
        """Where the process says its HTTP address (MIRRORFLOW_HTTP_FILE)."""
        return self.folder / "url"

    def write(self, worker: Mapping[str, str], connectors: Mapping[str, Mapping[str, str]]) -> None:
        """Write the property files; *connectors* are properties by name."""
        files = {self.worker: worker} | {self.connector(name): connectors[name] for name in self.connectors}
        for path, properties in files.items():
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
