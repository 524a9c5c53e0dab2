"""What is said where Spark is not there."""

import sys

import pytest

from mirrorflow_seed.errors import SparkMissingError
from mirrorflow_seed.session import require_spark


def test_a_missing_pyspark_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    """Before anything is asked of a cluster."""
    monkeypatch.setitem(sys.modules, "pyspark", None)

    with pytest.raises(SparkMissingError, match=r"mirrorflow\[seed\]"):
        require_spark()


def test_a_missing_java_is_told(monkeypatch: pytest.MonkeyPatch):
    """Neither on the path nor where JAVA_HOME points."""
    monkeypatch.setitem(sys.modules, "pyspark", sys)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)

    with pytest.raises(SparkMissingError, match="Java 17"):
        require_spark()
