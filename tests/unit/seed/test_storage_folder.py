"""Tests the folder of an archive on a local disk, and the errors for invalid addresses."""

import contextlib
from pathlib import Path

import pytest

from mirrorflow_seed.errors import FileSystemError
from mirrorflow_seed.storage_folder import (
    StorageFolder,
    address_below,
    file_system_error,
    has_credentials,
    scheme_of,
    uri_of_address,
)

pytest.importorskip("pyarrow")


@pytest.mark.parametrize(
    ("location", "scheme"),
    [
        ("/backup/a", "file"),
        ("backup:/a", "backup"),
        ("a b/c", "file"),
        ("S3A://bucket/a", "s3a"),
        ("x", "file"),
    ],
)
def test_the_scheme_of_a_location_is_file_by_default(location: str, scheme: str) -> None:
    assert scheme_of(location) == scheme


def test_a_plain_path_is_local_and_hadoop_schemes_become_those_of_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert uri_of_address("a b") == (tmp_path / "a b").as_uri()
    assert uri_of_address("file:/a") == "file:///a"
    assert uri_of_address("s3a://bucket/a") == "s3://bucket/a"
    for address in ("s3://bucket/a", "file:///a", "hdfs://names/a", "gs://bucket/a"):
        assert uri_of_address(address) == address


@pytest.mark.parametrize(
    ("location", "below"),
    [
        ("/out/", "/out/run-1"),
        ("/a?b", "/a?b/run-1"),
        ("s3://bucket/a/", "s3://bucket/a/run-1"),
        (
            "s3://bucket/a?endpoint_override=host:1&scheme=http",
            "s3://bucket/a/run-1?endpoint_override=host:1&scheme=http",
        ),
    ],
)
def test_options_stay_at_the_end_of_an_address(location: str, below: str) -> None:
    assert address_below(location, "run-1") == below


def test_table_formats_get_the_location_of_a_file_without_options(tmp_path: Path) -> None:
    local = StorageFolder(str(tmp_path / "a b"))
    store = StorageFolder("s3a://bucket/a/?endpoint_override=127.0.0.1:1&scheme=http&region=eu-west-1")

    encoded = StorageFolder("s3://bucket/a%20b?region=eu-west-1")
    azure = StorageFolder("abfss://container@account.dfs.core.windows.net/a%20b")

    assert local.location_of("topic=x/file") == f"file://{tmp_path}/a b/topic=x/file"
    assert store.location_of("topic=x/file") == "s3://bucket/a/topic=x/file"
    assert encoded.location_of("f") == "s3://bucket/a b/f"
    assert azure.location_of("f") == "abfss://container@account.dfs.core.windows.net/a b/f"


@pytest.mark.parametrize(
    "address",
    [
        "s3://KEY:SECRET@bucket/a?region=eu-west-1",
        "S3A://KEY:SEC/RET@bucket/a",
        "s3://KEY@bucket/a",
        "abfs://account:SECRET@container/a",
        "hdfs://user:SECRET@names/a",
    ],
)
def test_an_address_with_credentials_is_refused_without_naming_them(address: str) -> None:
    with pytest.raises(FileSystemError, match="the address has credentials") as raised:
        StorageFolder(address)
    assert not any(secret in str(raised.value) for secret in ("KEY", "SEC", "account"))


@pytest.mark.parametrize(
    "address",
    ["/a:b@c/d", "s3://bucket/a@b", "gs://anonymous@bucket/a", "abfss://c@account/a", "hdfs://n:8020/a:b@c"],
)
def test_an_address_without_credentials_is_not_refused(address: str) -> None:
    assert not has_credentials(address)


def test_an_invalid_location_is_refused_with_an_action() -> None:
    with pytest.raises(FileSystemError, match=r"no file system for ftp://; write a path"):
        StorageFolder("ftp://host/a")
    with pytest.raises(FileSystemError, match=r"/proc/a: the file system reports: .*can reach and write"):
        StorageFolder("/proc/a").prepare()
    assert "\n" not in str(file_system_error("/a", "refused"))


def test_a_file_has_its_name_only_after_it_is_complete(tmp_path: Path) -> None:
    folder = StorageFolder(str(tmp_path))
    with folder.writing("topic=a/partition=0/whole") as stream:
        stream.write(b"12")
        assert folder.read("topic=a/partition=0/whole") is None
    with contextlib.suppress(ValueError), folder.writing("topic=a/partition=0/cut") as stream:
        stream.write(b"1")
        raise ValueError

    assert folder.data() == {"topic=a/partition=0/whole": 2}
    folder.move("topic=a/partition=0/whole", "topic=b/partition=1/whole")
    assert folder.data() == {"topic=b/partition=1/whole": 2}
    assert folder.entries() == {"topic=a", "topic=b"}
    folder.delete("topic=b")
    folder.delete("nothing")
    assert folder.data() == {}


@pytest.mark.parametrize("is_local", [True, False])
def test_reading_many_files_returns_each_existing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_local: bool
) -> None:
    """A file that is deleted meanwhile is left out. Object stores are read by threads, through pyarrow."""
    folder = StorageFolder(str(tmp_path))
    monkeypatch.setattr(folder, "_is_local", is_local)
    paths = [f"results/{number}.json" for number in range(50)]
    for path in paths:
        folder.write(path, path.encode())
    folder.delete(paths[7])
    assert [(path, path.encode()) for path in paths if path != paths[7]] == list(folder.read_each(paths))


def test_only_the_first_of_two_writers_creates_a_file(tmp_path: Path) -> None:
    folder = StorageFolder(str(tmp_path))

    assert folder.create("_commits/1", b"first")
    assert not folder.create("_commits/1", b"second")

    assert folder.read("_commits/1") == b"first"
    assert folder.entries("_commits") == {"1"}


def test_a_disk_without_hard_links_uses_a_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.link", refuse)
    folder = StorageFolder(str(tmp_path))

    assert folder.create("_commits/1", b"first")
    assert not folder.create("_commits/1", b"second")
    assert folder.entries("_commits") == {"1"}


def test_a_folder_is_deleted_with_its_content_and_when_it_is_empty(tmp_path: Path) -> None:
    folder = StorageFolder(str(tmp_path))
    folder.write("a/b/c", b"1")
    (tmp_path / "empty").mkdir()

    for path in ("a", "empty", "missing"):
        folder.delete(path)

    assert folder.entries() == frozenset()
