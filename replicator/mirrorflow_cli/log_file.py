"""Manages the log file of `mirrorflow run`: the replicator appends to it, and it is rotated when it is large.

The replicator keeps the file open, so it is copied and then truncated (like logrotate's copytruncate). Lines
written between the two steps, a few at most, are lost from the copy.
"""

import os
import shutil
from pathlib import Path
from typing import IO

from mirrorflow_cli.errors import FailedError

LOG_BYTES_MAX = 10 * 1024 * 1024  # some 60,000 lines
KEPT_MAX = 3  # NAME.1 is the newest


class LogFile:
    """The log file at *path*, created if missing. Raises FailedError if it cannot be written."""

    def __init__(self, path: Path, *, max_bytes: int = LOG_BYTES_MAX) -> None:
        self.path = path
        self._max_bytes = max_bytes
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.file: IO[bytes] = path.open("ab", buffering=0)
        except OSError as error:
            raise FailedError(
                f"The log {path} cannot be written: {error.strerror}; choose another with --log."
            ) from error

    @property
    def size_bytes(self) -> int:
        """The file's current size."""
        return os.fstat(self.file.fileno()).st_size

    def rotate_if_large(self) -> bool:
        """Rotates the file if it is too large; returns whether it did. Raises OSError."""
        if self.size_bytes < self._max_bytes:
            return False
        for number in range(KEPT_MAX, 1, -1):
            older = self._kept(number - 1)
            if older.exists():
                older.replace(self._kept(number))
        shutil.copyfile(self.path, self._kept(1))
        self.file.truncate(0)
        return True

    def close(self) -> None:
        """Closes the file for this process."""
        self.file.close()

    def _kept(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
