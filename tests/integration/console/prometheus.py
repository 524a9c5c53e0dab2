"""Runs a real Prometheus from Debian's package, which scrapes one address every second."""

import shutil
import subprocess
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.harness.kafka.processes import free_port, wait_until

ABSENT: Final = "Prometheus is missing: install the package prometheus to test charts from it."
CONFIG: Final = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: mirrorflow
    static_configs: [{{targets: ["{target}"]}}]
"""


class Prometheus:
    """A Prometheus in *folder* that scrapes *target*, a host and port."""

    def __init__(self, folder: Path, target: str) -> None:
        self.port = free_port()
        folder.mkdir()
        (folder / "prometheus.yml").write_text(CONFIG.format(target=target))
        self._command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        self._log = folder / "prometheus.log"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        wait_until("Prometheus is ready", self._is_ready, timeout_s=60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Kills Prometheus, whose data is no longer needed."""
        self._process.kill()
        self._process.wait()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1) as response:
                return bool(response.status == 200)
        except OSError:
            return False


def is_installed() -> bool:
    return shutil.which("prometheus") is not None
