"""Results of `make compatibility` are read back unchanged, contain no host, and become the table in the documentation."""

import json
from pathlib import Path

import pytest

from tests.compatibility.__main__ import PAGE, RESULTS, main, stored_results, with_table
from tests.compatibility.endpoints import Endpoint
from tests.compatibility.result import CHECKS, Outcome, Result, Verdict, read_result, table, write_result

PASSED = Verdict(outcome=Outcome.PASSED, detail="22,000 records")


def result(**verdicts: Verdict) -> Result:
    return Result(
        source="Apache Kafka 4.3.1",
        target="Redpanda 99.1",
        mirrorflow="0.1.0",
        date="2026-11-29",
        guarantee="exactly-once",
        guarantee_reason="",
        verdicts=dict.fromkeys(CHECKS, PASSED) | verdicts,
    )


def test_a_stored_result_is_read_back_unchanged(tmp_path: Path):
    written = result(acls=Verdict(outcome=Outcome.UNAVAILABLE, detail="no authorizer"))

    write_result(written, tmp_path / "result.json")

    assert written == read_result(tmp_path / "result.json")


def test_a_result_of_a_different_format_is_refused(tmp_path: Path):
    path = tmp_path / "result.json"
    write_result(result(), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))

    with pytest.raises(ValueError, match="has format 2; this program reads format 1"):
        read_result(path)


def test_a_result_fails_only_if_a_check_failed():
    assert result(acls=Verdict(outcome=Outcome.UNAVAILABLE)).has_passed
    assert not result(copy=Verdict(outcome=Outcome.FAILED)).has_passed


def test_the_table_has_a_row_for_each_pair():
    rows = table(
        [
            result(
                acls=Verdict(outcome=Outcome.UNAVAILABLE),
                copy=Verdict(outcome=Outcome.FAILED, detail="1 record is missing"),
            )
        ]
    ).splitlines()

    assert len(rows) == 3
    assert rows[2].startswith(
        "| Apache Kafka 4.3.1 | Redpanda 99.1 | exactly-once | **no**: 1 record is missing |"
    )
    assert "| not offered |" in rows[2]


def test_the_documentation_has_the_table_of_the_stored_results():
    """`make compatibility-table` renews it."""
    page = PAGE.read_text()

    assert page == with_table(page, stored_results())
    assert all(result.has_passed for result in stored_results())


def test_stored_results_contain_no_host_address():
    assert [] == [path.name for path in RESULTS.glob("*.json") if "127.0.0.1" in path.read_text()]


def test_addresses_are_left_out_of_a_result(tmp_path: Path):
    endpoint = Endpoint(
        name="",
        alias="target",
        properties={"bootstrap.servers": "b-1.example.com:9092, b-2.example.com:9092"},
        home=tmp_path,
    )

    assert endpoint.without_addresses("b-2.example.com:9092 and b-1.example.com") == "target and target"


def test_a_cluster_given_by_addresses_needs_a_name(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--source", "4.3.1", "--target", "broker:9092"])

    assert "name the cluster and its version with --target-name" in capsys.readouterr().err
