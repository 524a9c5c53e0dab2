"""Tests which jars of PySpark are put into the image."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_seed import jars

FILES = [f"{name}-1.0.jar" for name in sorted(jars.WANTED)]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("spark-core_2.13-4.3.0.jar", "spark-core"),
        ("log4j-1.2-api-2.25.4.jar", "log4j-1.2-api"),
        ("netty-common-4.2.13.Final.jar", "netty-common"),
        ("orc-mapreduce-2.3.0-shaded-protobuf.jar", "orc-mapreduce"),
        ("zstd-jni-1.5.7-7.jar", "zstd-jni"),
        ("jline-3.29.0-jdk8.jar", "jline"),
        ("netty-tcnative-boringssl-static-2.0.76.Final-linux-x86_64.jar", "netty-tcnative-boringssl-static"),
    ],
)
def test_jar_name_excludes_versions(file: str, name: str):
    assert jars.name_of(file) == name


@given(
    st.lists(st.sampled_from(["rocksdbjni-9.8.4.jar", "hive-exec-2.3.10-core.jar", "py4j.txt"]), unique=True)
)
def test_unlisted_jars_are_left_out(others: list[str]):
    assert jars.kept([*others, *FILES]) == sorted(FILES)


def test_the_build_fails_if_a_listed_jar_is_missing():
    """A new release of Spark may rename a jar. Otherwise jobs would fail."""
    with pytest.raises(LookupError, match="spark-core"):
        jars.kept(file for file in FILES if not file.startswith("spark-core-"))


def test_java_part_is_moved_and_unused_python_deleted(tmp_path):
    package, home = tmp_path / "pyspark", tmp_path / "spark"
    for file in [*(f"jars/{jar}" for jar in [*FILES, "rocksdbjni-9.8.4.jar"]), "mllib/__init__.py", "rdd.py"]:
        (package / file).parent.mkdir(parents=True, exist_ok=True)
        (package / file).touch()
    (package / "bin").mkdir()
    for command in (*jars.COMMANDS, "spark-shell"):
        (package / "bin" / command).touch()

    jars.split(package, home)

    assert sorted(path.name for path in (home / "jars").iterdir()) == sorted(FILES)
    assert sorted(path.name for path in (home / "bin").iterdir()) == sorted(jars.COMMANDS)
    assert [path.name for path in package.iterdir()] == ["rdd.py"]
