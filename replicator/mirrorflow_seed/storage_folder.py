"""Reads and writes the folder of an archive or a result: on a disk, or in a store that pyarrow reaches.

Driver and tasks use it alike, so a folder is one that all of them reach. Paths are relative to the folder, with `/` as
separator. An address without a scheme is a local path. Credentials of a store come from the environment or from the
identity of the process that uses it, never from Spark.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from mirrorflow_kafka.client.cluster import chunks
from mirrorflow_seed.errors import FileSystemError, SparkMissingError

DATA_PREFIX: Final = "topic="
TEMPORARY_SUFFIX: Final = ".new"
TEMPORARY_FOLDER: Final = "_temporary"
# A store responds to a read in some 30 ms, whatever its size.
READING_THREADS: Final = 32
READ_AT_ONCE: Final = 1_000
LOCAL_READ_BYTES: Final = 1 << 16
_LOCAL: Final = "file"
# Hadoop's names of the stores that pyarrow calls by their own.
_SCHEMES: Final[Mapping[str, str]] = {"s3a": "s3", "s3n": "s3", "wasb": "abfs", "wasbs": "abfss"}
_ROOTED_AT_BUCKET: Final = frozenset({"s3", "gs", "gcs"})  # pyarrow's paths begin with the bucket
# File systems where a rename is no copy.
_RENAMING: Final = frozenset({"local", "hdfs"})


class StorageFolder:
    """A folder; its methods raise FileSystemError."""

    def __init__(self, address: str) -> None:
        if has_credentials(address):
            raise FileSystemError(
                location=f"{scheme_of(address)}://",
                problem="the address has credentials, which would get into reports and metadata",
                action="write it without what is before the @; credentials come from the environment (docs/archive.md)",
            )
        self.address = address
        try:
            from pyarrow import fs  # noqa: PLC0415 the extra `seed`
        except ImportError as error:
            raise SparkMissingError(
                "pyarrow is not installed; install it in MirrorFlow's folder with: pip install '.[cli,seed]'."
            ) from error
        with self._errors():
            self._fs, self._root = fs.FileSystem.from_uri(uri_of_address(address))
        # whether files are renamed into their place, else written there
        self.renames = self._fs.type_name in _RENAMING
        self._is_local = self._fs.type_name == "local"

    def prepare(self) -> None:
        """Creates the folder and checks that it is writable, so that a job fails before its work."""
        with self._errors():
            self._fs.create_dir(self._root, recursive=True)
        self.write(".writable", b"")
        self.delete(".writable")

    def make_private(self) -> bool:
        """Lets only its owner enter the folder; returns False where that is not possible, as in a store, which has its own rules."""
        if not self._is_local:
            return False
        try:
            Path(self._root).chmod(stat.S_IRWXU)
        except OSError:
            return False
        return True

    def entries(self, path: str = "") -> frozenset[str]:
        """Returns the names of the direct entries of the folder *path*; empty if it does not exist."""
        return frozenset(str(entry.base_name) for entry in self._list(self._at(path), recursive=False))

    def data(self) -> Mapping[str, int]:
        """Returns the path of each file of records, with its size in bytes."""
        names = [name for name in sorted(self.entries()) if name.startswith(DATA_PREFIX)]
        return {path: size for name in names for path, size in self.files(name).items()}

    def files(self, path: str) -> Mapping[str, int]:
        """Returns the path of each file below the folder *path*, with its size in bytes."""
        prefix = len(self._root.rstrip("/")) + 1
        return {
            str(entry.path)[prefix:]: int(entry.size)
            for entry in self._list(self._at(path), recursive=True)
            if entry.is_file
        }

    def read(self, path: str) -> bytes | None:
        """Returns the content of a file; None if it does not exist."""
        with self._errors():
            if not self._fs.get_file_info(self._at(path)).is_file:
                return None
            with self._fs.open_input_stream(self._at(path)) as stream:
                return bytes(stream.read())

    def read_each(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yields each of *paths* that exists, with its content; for many small files. Stores are read by several threads."""
        if self._is_local:
            for path in paths:
                with self._errors(), contextlib.suppress(FileNotFoundError):
                    yield path, _content_of(self._at(path))
            return
        with ThreadPoolExecutor(READING_THREADS) as pool:
            for chunk in chunks(paths, READ_AT_ONCE):
                for path, content in zip(chunk, pool.map(self.read, chunk), strict=True):
                    if content is not None:
                        yield path, content

    def write(self, path: str, content: bytes) -> None:
        """Writes a file completely or not at all."""
        with self.writing(path) as stream:
            stream.write(content)

    def create(self, path: str, content: bytes) -> bool:
        """Writes a file unless it exists; returns whether it did not. Of two that create it, one succeeds.

        Object stores have no such call through pyarrow: there, the later of two at the same moment replaces the file.
        """
        with self._errors():
            if self._fs.get_file_info(self._at(path)).is_file:
                return False
        if not self.renames:
            self.write(path, content)
            return True
        written = f"{path}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
        self.write(written, content)
        try:
            return self._rename_new(written, path)
        finally:
            self.delete(written)

    def _rename_new(self, written: str, path: str) -> bool:
        """Gives a file a name that no file has; returns False if one has it meanwhile."""
        if self._is_local:
            try:
                os.link(self._at(written), self._at(path))  # unlike a rename, it fails if the file exists
            except FileExistsError:
                return False
            except OSError:  # some mounted stores have no links
                pass
            else:
                return True
        with self._errors():
            try:
                self._fs.move(self._at(written), self._at(path))  # HDFS refuses to replace a file
            except OSError:
                if self._fs.get_file_info(self._at(path)).is_file:
                    return False
                raise
        return True

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[Any]:
        """Yields a binary stream; the file has its name once the block ends without an exception."""
        written = path + TEMPORARY_SUFFIX if self.renames else path
        with self._errors():
            if self.renames:
                self._fs.create_dir(self._at(path).rpartition("/")[0], recursive=True)
            stream = self._fs.open_output_stream(self._at(written))
        try:
            yield stream
        except BaseException:
            with contextlib.suppress(Exception):
                stream.close() if self.renames else stream.abort()
                self._fs.delete_file(self._at(written))
            raise
        with self._errors():
            stream.close()
            if self.renames:
                self._fs.move(self._at(written), self._at(path))

    def reading(self, path: str) -> Any:
        """Returns the file *path*, opened for random access."""
        with self._errors():
            return self._fs.open_input_file(self._at(path))

    def move(self, path: str, new: str) -> None:
        """Gives a file another name, in a folder that is created."""
        with self._errors():
            self._fs.create_dir(self._at(new).rpartition("/")[0], recursive=True)
            self._fs.move(self._at(path), self._at(new))

    def location_of(self, path: str) -> str:
        """Returns the address of a file as table formats write it: without options, and not encoded."""
        if self._is_local:
            return f"{_LOCAL}://{self._at(path)}"
        uri = uri_of_address(self.address).partition("?")[0]
        scheme, _, rest = uri.partition("://")
        if scheme in _ROOTED_AT_BUCKET:
            return f"{scheme}://{self._at(path)}"
        host, _, folder = rest.partition("/")
        return f"{scheme}://{host}/{unquote(folder)}".rstrip("/") + f"/{path}"

    def delete(self, path: str) -> None:
        """Deletes a file, or a folder with its content."""
        from pyarrow import fs  # noqa: PLC0415 see above

        with self._errors():
            entry = self._fs.get_file_info(self._at(path))
            if entry.is_file:
                self._fs.delete_file(self._at(path))
            elif entry.type == fs.FileType.Directory:
                self._fs.delete_dir(self._at(path))

    def _at(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}".rstrip("/")

    def _list(self, path: str, *, recursive: bool) -> list[Any]:
        from pyarrow import fs  # noqa: PLC0415 see above

        with self._errors():
            return list(
                self._fs.get_file_info(fs.FileSelector(path, recursive=recursive, allow_not_found=True))
            )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raises FileSystemError with the first line of another error."""
        try:
            yield
        except FileSystemError:
            raise
        except Exception as error:
            lines = str(error).splitlines() or [type(error).__name__]
            raise file_system_error(self.address, lines[0]) from error


def _content_of(path: str) -> bytes:
    """Returns the content of a small local file, in a third of the time that a file object takes. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(descriptor, LOCAL_READ_BYTES):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def file_system_error(location: str, message: str) -> FileSystemError:
    """Returns the error for a *message* of pyarrow about *location*."""
    if "nrecognized filesystem" in message or "unsupported" in message.lower():
        return FileSystemError(
            location=location,
            problem=f"there is no file system for {scheme_of(location)}://",
            action="write a path, or an address with file, s3, gs, abfs or hdfs (docs/archive.md)",
        )
    return FileSystemError(
        location=location,
        problem=f"the file system reports: {message.rstrip('.')}",
        action="name a folder that driver and executors can reach and write: a path, or an address such as s3://backup/a",
    )


def scheme_of(location: str) -> str:
    """Returns the scheme of an address in lower case; `file` if it has none."""
    scheme, separator, _ = location.partition(":/")
    return scheme.lower() if separator and scheme.isascii() and scheme.isalnum() else _LOCAL


def has_credentials(location: str) -> bool:
    """Whether an address names a key or a password before its host: any user in S3, elsewhere one with a colon.

    `container@account` of Azure is none. Keys may have a `/`, which is not valid there.
    """
    scheme = scheme_of(location)
    scheme = _SCHEMES.get(scheme, scheme)
    if scheme == _LOCAL:
        return False
    rest = location.partition("://")[2].partition("?")[0]
    host = rest.partition("/")[0]
    if scheme == "s3" and "@" in host:
        return True
    return "@" in (host if scheme == "hdfs" else rest) and ":" in host.partition("@")[0]


def address_below(location: str, path: str) -> str:
    """Returns the address of *path* below the folder *location*, whose options, as those of a store, stay at the end."""
    if scheme_of(location) == _LOCAL:
        return f"{location.rstrip('/')}/{path}"
    folder, mark, options = location.partition("?")
    return f"{folder.rstrip('/')}/{path}{mark}{options}"


def uri_of_address(location: str) -> str:
    """Returns a local path as a `file:` URI; other addresses with the scheme that pyarrow has for them."""
    scheme = scheme_of(location)
    if scheme != _LOCAL:
        return f"{_SCHEMES.get(scheme, scheme)}{location[len(scheme) :]}"
    if location.lower().startswith(f"{_LOCAL}:/"):
        return (
            location if location.startswith(f"{_LOCAL}:///") else f"{_LOCAL}://{location[len(_LOCAL) + 1 :]}"
        )
    return Path(location).expanduser().resolve().as_uri()
