"""Tests how addresses of folders are read, and the errors for unknown file systems."""

from pathlib import Path

import pytest

from mirrorflow_seed.hadoop_folder import file_system_error, scheme_of, uri_of_address


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
def test_scheme_precedes_the_path(location: str, scheme: str) -> None:
    assert scheme_of(location) == scheme


def test_plain_path_is_local_and_address_is_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever Spark's default file system is."""
    monkeypatch.chdir(tmp_path)

    assert uri_of_address("a b") == (tmp_path / "a b").as_uri()
    for address in ("s3a://bucket/a", "file:///a", "hdfs://names/a"):
        assert uri_of_address(address) == address


@pytest.mark.parametrize(
    ("location", "said", "expected"),
    [
        (
            "s3a://bucket/a",
            "java.lang.RuntimeException: java.lang.ClassNotFoundException: Class org...S3AFileSystem not found",
            ("no file system for s3a://", "spark.jars"),
        ),
        (
            "s3://bucket/a",
            'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"',
            ("no file system for s3://", "write s3a://"),
        ),
        ("hdfs://names/a", "java.net.ConnectException: refused", ("refused", "reached")),
        (
            "/proc/a",
            "java.io.IOException: Mkdirs failed to create file:/proc/a",
            ("Mkdirs failed", "written"),
        ),
    ],
)
def test_unusable_location_is_refused_with_an_action(
    location: str, said: str, expected: tuple[str, ...]
) -> None:
    sentence = str(file_system_error(location, said))

    assert sentence.startswith(f"{location}: ")
    assert sentence.endswith(".")
    assert all(one in sentence for one in expected)
