"""Manages the files of a flow's process: property files of worker and connectors, and the HTTP address.

The process writes the address of its HTTP server itself. Property files hold references, never a resolved
secret, and only the current user can read them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mirrorflow_core.java.properties import format_properties


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFiles:
    """The files in *folder*; *connectors* are connector names."""

    folder: Path
    connectors: tuple[str, ...]

    @property
    def worker(self) -> Path:
        """The path of worker.properties for `standalone`."""
        return self.folder / "worker.properties"

    def connector(self, name: str) -> Path:
        """Returns the path of the connector.properties of connector *name* for `standalone`."""
        return self.folder / f"{name}.properties"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of `standalone`: the worker file, then the connector files."""
        return (str(self.worker), *(str(self.connector(name)) for name in self.connectors))

    @property
    def http(self) -> Path:
        """The path that the process writes its HTTP address to (MIRRORFLOW_HTTP_FILE)."""
        return self.folder / "url"

    def write(self, worker: Mapping[str, str], connectors: Mapping[str, Mapping[str, str]]) -> None:
        """Writes the property files; *connectors* is connector name -> properties."""
        files = {self.worker: worker} | {self.connector(name): connectors[name] for name in self.connectors}
        for path, properties in files.items():
            path.touch(mode=0o600)
            path.write_text(format_properties(properties), encoding="ascii")

    def url(self) -> str | None:
        """Returns the address of the process's HTTP server, or None until the process has written it."""
        try:
            return self.http.read_text(encoding="utf-8").strip() or None
        except FileNotFoundError:
            return None

    def forget_url(self) -> None:
        """Deletes the address, so that progress is never requested from a process that has ended."""
        self.http.unlink(missing_ok=True)
