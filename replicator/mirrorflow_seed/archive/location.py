"""The folder of an archive: any file system that Spark's Hadoop client can reach (file:, hdfs:, s3a: with its jars).

The only module that asks that client. Paths are given and taken below the folder, with `/` between.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mirrorflow_seed.errors import ArchiveError

if TYPE_CHECKING:
    from pyspark import SparkContext

DATA_PREFIX = "topic="
TEMPORARY_SUFFIX = ".new"


class Location:
    """See the module. Raises ArchiveError where the file system cannot be used."""

    def __init__(self, context: "SparkContext", location: str) -> None:
        self.text = location
        self._jvm = context._jvm  # noqa: SLF001 pyspark has no other way to Hadoop's file systems
        with self._told():
            path = self._path_of(location)
            self._files = path.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001
            self._root = self._files.makeQualified(path)

    @property
    def uri(self) -> str:
        """The folder as Spark takes it."""
        return str(self._root.toString())

    def uri_of(self, path: str) -> str:
        """Something below it, as Spark takes it."""
        return str(self._at(path).toString())

    def entries(self) -> frozenset[str]:
        """The names right in the folder; none where it does not exist."""
        with self._told():
            if not self._files.exists(self._root):
                return frozenset()
            return frozenset(str(one.getPath().getName()) for one in self._files.listStatus(self._root))

    def data(self) -> Mapping[str, int]:
        """Every file of records by its path, with its size in bytes."""
        found: dict[str, int] = {}
        prefix = len(self.uri.rstrip("/")) + 1
        for name in sorted(self.entries()):
            if not name.startswith(DATA_PREFIX):
                continue
            with self._told():
                below = self._files.listFiles(self._at(name), True)
                while below.hasNext():
                    status = below.next()
                    found[str(status.getPath().toString())[prefix:]] = int(status.getLen())
        return found

    def read(self, path: str) -> bytes | None:
        """The content of a file; None where there is none."""
        with self._told():
            if not self._files.exists(self._at(path)):
                return None
            stream = self._files.open(self._at(path))
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def write(self, path: str, content: bytes) -> None:
        """All of a file or nothing: it gets its name when its content is there."""
        temporary = self._at(path + TEMPORARY_SUFFIX)
        with self._told():
            stream = self._files.create(temporary, True)
            try:
                stream.write(content)
            finally:
                stream.close()
            self._files.delete(self._at(path), False)
            is_there = self._files.rename(temporary, self._at(path))
        if not is_there:
            raise ArchiveError(location=self.text, problem=f"{path} cannot be given its name")

    def delete(self, path: str) -> None:
        """A file, or a folder with all that is in it."""
        with self._told():
            self._files.delete(self._at(path), True)

    def _at(self, path: str) -> Any:
        return self._path_of(self.uri.rstrip("/") + "/" + path)

    def _path_of(self, text: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(text)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What Java says, in one line: of a Py4JJavaError the exception that was thrown there."""
        try:
            yield
        except Exception as error:
            cause = getattr(error, "java_exception", None)
            said = str(cause.toString() if cause is not None else error).splitlines()
            raise ArchiveError(
                location=self.text,
                problem=f"the file system says: {said[0] if said else type(error).__name__}",
                action="give archive=<folder> with a scheme that Spark knows"
                " (file:///..., hdfs://..., s3a://... with its jars)",
            ) from error
