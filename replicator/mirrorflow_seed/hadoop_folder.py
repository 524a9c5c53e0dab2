"""Reads and writes the folder of an archive or a result, on any file system that Spark's Hadoop client reaches.

Only this module uses that client. Paths are relative to the folder, with `/` as separator. An address without a
scheme is a local path, whatever Spark's default file system is.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mirrorflow_seed.errors import FileSystemError
from mirrorflow_seed.spark_session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATA_PREFIX: Final = "topic="
TEMPORARY_SUFFIX: Final = ".new"
# Java exceptions for a scheme without file system: Hadoop has no implementation, or not its class.
_UNKNOWN: Final = ("UnsupportedFileSystemException", "ClassNotFoundException")
_LOCAL: Final = "file"
# Schemes that other tools use for object stores, and Hadoop's own names.
_HADOOP_SCHEMES: Final[Mapping[str, str]] = {"s3": "s3a", "s3n": "s3a", "wasb": "abfss", "wasbs": "abfss"}


class HadoopFolder:
    """A folder of a Hadoop file system. Methods raise FileSystemError if the file system cannot be used."""

    def __init__(self, session: "SparkSession", address: str) -> None:
        self.address = address
        if is_connect(session):
            raise FileSystemError(
                location=address,
                problem="folders are written by Spark's driver, which is not this process with Spark Connect",
                action="start the job with spark-submit or a classic session",
            )
        context = session.sparkContext
        self._jvm = context._jvm  # noqa: SLF001 pyspark has no other way to Hadoop's file systems
        with self._errors():
            path = self._path_of(uri_of_address(address))
            self._file_system = path.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001
            self._root = self._file_system.makeQualified(path)
            # The raw local file system writes no `.crc` files, which would surprise users.
            self._raw = self._file_system.getRaw() if scheme_of(self.uri) == _LOCAL else self._file_system

    @property
    def uri(self) -> str:
        return str(self._root.toString())

    def uri_of(self, path: str) -> str:
        return str(self._at(path).toString())

    def prepare(self) -> None:
        """Creates the folder and checks that it is writable, so that a job fails before its work."""
        with self._errors():
            self._file_system.mkdirs(self._root)
        self.write(".writable", b"")
        self.delete(".writable")

    def entries(self) -> frozenset[str]:
        """Returns the names of the folder's direct entries; empty if the folder does not exist."""
        with self._errors():
            if not self._file_system.exists(self._root):
                return frozenset()
            return frozenset(str(one.getPath().getName()) for one in self._file_system.listStatus(self._root))

    def data(self) -> Mapping[str, int]:
        """Returns the path of each file of records, with its size in bytes."""
        found: dict[str, int] = {}
        prefix = len(self.uri.rstrip("/")) + 1
        for name in sorted(self.entries()):
            if not name.startswith(DATA_PREFIX):
                continue
            with self._errors():
                below = self._file_system.listFiles(self._at(name), True)
                while below.hasNext():
                    status = below.next()
                    found[str(status.getPath().toString())[prefix:]] = int(status.getLen())
        return found

    def read(self, path: str) -> bytes | None:
        """Returns the content of a file; None if it does not exist."""
        with self._errors():
            if not self._file_system.exists(self._at(path)):
                return None
            stream = self._file_system.open(self._at(path))
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def write(self, path: str, content: bytes) -> None:
        """Writes a file completely or not at all: it is renamed to *path* once its content is written."""
        temporary = self._at(path + TEMPORARY_SUFFIX)
        with self._errors():
            stream = self._raw.create(temporary, True)
            try:
                stream.write(content)
            finally:
                stream.close()
            self._file_system.delete(self._at(path), False)
            is_renamed = self._raw.rename(temporary, self._at(path))
        if not is_renamed:
            raise FileSystemError(
                location=self.address, problem=f"{path} cannot be renamed to its final name"
            )

    def delete(self, path: str) -> None:
        """Deletes a file, or a folder with its content."""
        with self._errors():
            self._file_system.delete(self._at(path), True)

    def _at(self, path: str) -> Any:
        return self._path_of(self.uri.rstrip("/") + "/" + path)

    def _path_of(self, text: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(text)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raises FileSystemError with the first line of the Java exception, or of any other error."""
        try:
            yield
        except Exception as error:
            cause = getattr(error, "java_exception", None)
            lines = str(cause.toString() if cause is not None else error).splitlines() or [
                type(error).__name__
            ]
            raise file_system_error(self.address, lines[0]) from error


def file_system_error(location: str, message: str) -> FileSystemError:
    """Returns the error for a *message* of Hadoop about *location*."""
    scheme = scheme_of(location)
    if scheme == _LOCAL or not any(one in message for one in _UNKNOWN):
        return FileSystemError(
            location=location,
            problem=f"the file system reports: {message}",
            action="name a folder that can be reached and written: a path, or an address such as file:///backup or hdfs://names/backup",
        )
    if scheme in _HADOOP_SCHEMES:
        action = f"write {_HADOOP_SCHEMES[scheme]}://, which is Hadoop's name for it, and see docs/archive.md for its jars"
    else:
        action = "add its jars to Spark's: by an image that has them, or --set spark.jars=... (docs/archive.md says which)"
    return FileSystemError(
        location=location, problem=f"this Spark has no file system for {scheme}://", action=action
    )


def scheme_of(location: str) -> str:
    """Returns the scheme of an address in lower case; `file` if it has none."""
    scheme, found, _ = location.partition(":/")
    return scheme.lower() if found and scheme.isascii() and scheme.isalnum() else _LOCAL


def uri_of_address(location: str) -> str:
    """Returns a local path as a `file:` URI; returns other addresses unchanged."""
    if scheme_of(location) != _LOCAL or location.lower().startswith(f"{_LOCAL}:/"):
        return location
    return Path(location).expanduser().resolve().as_uri()
