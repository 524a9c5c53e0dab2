"""Keeps an Iceberg table of an archive: the archive's own files, added by reference.

    a commit of the archive ──> the files that it adds and replaces ──> one Iceberg commit, by the driver

Guarantees: one Iceberg commit takes the table from the files of one commit of the archive to those of a later one, and its properties
name that commit. So each record is in the table once, also after a kill: the next export first adds what is missing. Files that were
merged are deleted only after the table has replaced them. No data is copied and no file is opened: the archive's commits have sizes,
counts and bounds.

The chain of commits stays the archive. Restores and verifications do not read the table.

Files do not have the columns `topic` and `partition`. They are identity partitions of the table, whose values readers take from its
metadata, as the specification says of columns that a file lacks.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_seed.archive.commit_log import ArchiveState
from mirrorflow_seed.archive.manifest import ArchivedFile
from mirrorflow_seed.errors import IcebergTableError, JobSettingError, SparkMissingError
from mirrorflow_seed.storage_folder import StorageFolder

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

TABLE_KEY: Final = "archive.iceberg.table"
ARCHIVE_PROPERTY: Final = "mirrorflow.archive-id"
COMMIT_PROPERTY: Final = "mirrorflow.commit"
COMMIT_ID_PROPERTY: Final = "mirrorflow.commit-id"
FILES_PROPERTY: Final = "mirrorflow.files"  # a digest of the paths that the last commit has left in the table
NAME_MAPPING_PROPERTY: Final = "schema.name-mapping.default"
# No engine deletes files of the archive. An increment a minute makes many manifests and versions of the metadata.
TABLE_PROPERTIES: Final[Mapping[str, str]] = {
    "gc.enabled": "false",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
# A different export may commit to the table at the same moment; it is then read again.
TRIES_MAX: Final = 5
_MICROSECONDS: Final = 1_000  # of a millisecond

log = logging.getLogger("mirrorflow.archive")


class IcebergTable:
    """The Iceberg table *name* (`catalog.namespace.table`) of the archive in *folder*.

    PyIceberg finds the catalog by its own configuration; *load_catalog* replaces that in tests. Raises JobSettingError,
    SparkMissingError.
    """

    def __init__(
        self, name: str, folder: StorageFolder, *, load_catalog: "Callable[[str], Catalog] | None" = None
    ) -> None:
        self.name = name
        self._folder = folder
        self._catalog_name, _, self._identifier = name.partition(".")
        if "." not in self._identifier:
            raise JobSettingError(
                key=TABLE_KEY,
                problem=f"{name!r} is no name of a table",
                action="write catalog.namespace.table, with a catalog of PyIceberg's configuration",
            )
        self._load_catalog = load_catalog or _pyiceberg_catalog
        self._catalog: Catalog | None = None

    def check(self, archive_id: str | None) -> None:
        """Asks the catalog what `follow` needs, so that a job fails before its work. Raises IcebergTableError.

        *archive_id* is None while the archive has no commit: no table can be of it.
        """
        from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 the extra `iceberg`

        namespace = self._identifier.rpartition(".")[0]
        with self._errors("look for the table"):
            catalog = self._connected()
            if not catalog.namespace_exists(namespace):
                raise IcebergTableError(
                    location=self.name,
                    problem=f"the catalog has no namespace {namespace}",
                    action="create it, or name one that exists",
                )
            try:
                table = catalog.load_table(self._identifier)
            except NoSuchTableError:
                return
            self._require_own(table, archive_id)

    def follow(self, state: ArchiveState) -> None:
        """Gives the table the files of *state*; changes nothing if it has those or later ones. Raises IcebergTableError."""
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 the extra `iceberg`

        with self._errors(f"take the table to commit {state.number}"):
            for tries_left in reversed(range(TRIES_MAX)):
                try:
                    self._commit(self._table_of(state), state)
                except CommitFailedException:
                    if not tries_left:
                        raise
                else:
                    return

    def _connected(self) -> "Catalog":
        if self._catalog is None:
            self._catalog = self._load_catalog(self._catalog_name)
        return self._catalog

    def _table_of(self, state: ArchiveState) -> "Table":
        """Returns the table as it is now; creates it for the first commit. Raises IcebergTableError if it is not this archive's."""
        from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError  # noqa: PLC0415 see above

        catalog, archive_id = self._connected(), state.manifest.archive_id
        try:
            table = catalog.load_table(self._identifier)
        except NoSuchTableError:
            try:
                table = catalog.create_table(
                    self._identifier,
                    schema=table_schema(),
                    partition_spec=partition_spec(),
                    properties={**TABLE_PROPERTIES, ARCHIVE_PROPERTY: archive_id},
                )
            except TableAlreadyExistsError:
                table = catalog.load_table(self._identifier)
        self._require_own(table, archive_id)
        return table

    def _require_own(self, table: "Table", archive_id: str | None) -> None:
        if archive_id is None or table.properties.get(ARCHIVE_PROPERTY) != archive_id:
            raise IcebergTableError(
                location=self.name,
                problem="the table exists, and is not of this archive",
                action="name a table that does not exist",
            )

    def _commit(self, table: "Table", state: ArchiveState) -> None:
        known = table.properties
        if (
            int(known.get(COMMIT_PROPERTY, "0")) > state.number
            or known.get(COMMIT_ID_PROPERTY) == state.commit_id
        ):
            return
        present = {task.file.file_path: task.file for task in table.scan().plan_files()}
        if known.get(FILES_PROPERTY, digest_of(())) != digest_of(present):
            raise IcebergTableError(
                location=self.name,
                problem="a different program has changed its files",
                action="drop the table without purging its files, and start the export again: it creates the table anew",
            )
        wanted = {
            self._folder.location_of(file.path): (partition, file)
            for partition, content in state.manifest.partitions.items()
            for file in content.files
        }
        added, removed = wanted.keys() - present.keys(), present.keys() - wanted.keys()
        commit = {COMMIT_PROPERTY: str(state.number), COMMIT_ID_PROPERTY: state.commit_id}
        with table.transaction() as transaction:
            if added or removed:
                update = transaction.update_snapshot(snapshot_properties=commit)
                with update.overwrite() if removed else update.merge_append() as snapshot:
                    for path in sorted(removed):
                        snapshot.delete_data_file(present[path])
                    for path in sorted(added):
                        snapshot.append_data_file(data_file(table, path, *wanted[path]))
            transaction.set_properties(
                {
                    **commit,
                    FILES_PROPERTY: digest_of(wanted),
                    NAME_MAPPING_PROPERTY: table.schema().name_mapping.model_dump_json(),
                }
            )
        log.info(
            "Iceberg table %s has commit %d: %d files were added, %d replaced.",
            self.name,
            state.number,
            len(added),
            len(removed),
        )

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """Raises IcebergTableError with the class of an error of PyIceberg or of its catalog.

        Their texts may have the catalog's password or token, such as a header that is not valid.
        """
        try:
            yield
        except (IcebergTableError, SparkMissingError):
            raise
        except Exception as error:  # noqa: BLE001 the classes are those of the catalog's client
            raise IcebergTableError(
                location=self.name,
                problem=f"PyIceberg cannot {doing} ({type(error).__name__})",
                action="check PyIceberg's configuration and the catalog; the archive is complete up to its last commit, and the next export "
                "brings the table there",
            ) from None


def _pyiceberg_catalog(name: str) -> "Catalog":
    try:
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415 the extra `iceberg`
    except ImportError as error:
        raise SparkMissingError(
            "pyiceberg is not installed; install it in MirrorFlow's folder with: pip install '.[cli,iceberg]'."
        ) from error
    return load_catalog(name)


def digest_of(paths: Iterable[str]) -> str:
    """Returns a digest of a set of paths."""
    return blake2b("\n".join(sorted(paths)).encode(), digest_size=16).hexdigest()


def table_schema() -> Any:
    """Returns the columns of the table: those of the files (`parquet_files`) after `topic` and `partition`."""
    from pyiceberg.schema import Schema  # noqa: PLC0415 the extra `iceberg`
    from pyiceberg.types import (  # noqa: PLC0415
        BinaryType,
        IntegerType,
        ListType,
        LongType,
        NestedField,
        StringType,
        StructType,
        TimestamptzType,
    )

    header = StructType(
        NestedField(12, "key", StringType(), required=True), NestedField(13, "value", BinaryType())
    )
    return Schema(
        # Optional, because files do not have them.
        NestedField(1, "topic", StringType()),
        NestedField(2, "partition", IntegerType()),
        NestedField(3, "offset", LongType(), required=True),
        NestedField(4, "timestamp", TimestamptzType()),
        NestedField(5, "timestamp_ms", LongType(), required=True),
        NestedField(6, "timestamp_type", IntegerType(), required=True),
        NestedField(7, "key", BinaryType()),
        NestedField(8, "value", BinaryType()),
        NestedField(
            9, "headers", ListType(element_id=11, element=header, element_required=False), required=True
        ),
        NestedField(10, "headers_raw", BinaryType()),
    )


def partition_spec() -> Any:
    """Returns the partitioning of the table: by topic and partition."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec  # noqa: PLC0415 the extra `iceberg`
    from pyiceberg.transforms import IdentityTransform  # noqa: PLC0415

    return PartitionSpec(
        PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="topic"),
        PartitionField(source_id=2, field_id=1001, transform=IdentityTransform(), name="partition"),
    )


def data_file(table: "Table", location: str, partition: TopicPartition, file: ArchivedFile) -> "DataFile":
    """Returns the entry of a file: with the bounds of offsets and times, by which engines choose files."""
    from pyiceberg.conversions import to_bytes  # noqa: PLC0415 the extra `iceberg`
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat  # noqa: PLC0415
    from pyiceberg.typedef import Record  # noqa: PLC0415

    offset, timestamp = (table.schema().find_field(name) for name in ("offset", "timestamp"))
    bounds = [(offset, file.start, file.end - 1)]
    if file.times.first_ms is not None and file.times.last_ms is not None:
        bounds.append((timestamp, file.times.first_ms * _MICROSECONDS, file.times.last_ms * _MICROSECONDS))
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(partition.topic, partition.partition),
        record_count=file.tally.records,
        file_size_in_bytes=file.size_bytes,
        column_sizes={},
        value_counts={offset.field_id: file.tally.records},
        null_value_counts={offset.field_id: 0},
        nan_value_counts={},
        lower_bounds={field.field_id: to_bytes(field.field_type, lower) for field, lower, _ in bounds},
        upper_bounds={field.field_id: to_bytes(field.field_type, upper) for field, _, upper in bounds},
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
        spec_id=table.spec().spec_id,
    )
