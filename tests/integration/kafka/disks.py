"""A disk that a broker can fill: a file system of a few megabytes that grows when a test says so."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ENOUGH_MB = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallDisk:
    """Mounted at *folder*."""

    folder: Path

    @property
    def config(self) -> Mapping[str, str]:
        """The settings of a broker on this disk: with Kafka's own sizes an index alone would fill it."""
        return {
            "log.dirs": str(self.folder / "data"),
            "log.index.size.max.bytes": "65536",
            "log.segment.bytes": "4194304",
        }

    def grow(self) -> None:
        """Let there be room."""
        subprocess.run(["mount", "-o", f"remount,size={ENOUGH_MB}m", str(self.folder)], check=True)


@contextmanager
def small_disk(folder: Path, size_mb: int) -> Iterator[SmallDisk]:
    """A disk of *size_mb* at *folder*, which it makes; only root can, for others the test is skipped."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("this user may not mount a tmpfs")
    try:
        yield SmallDisk(folder=folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
