"""The last verification of a flow, by the files of `mirrorflow verify --out`: what they do not say is unknown."""

import json
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_cli.errors import UsageError
from mirrorflow_cli.verification_results import last_verification
from mirrorflow_core.switchover.last_verification import LastVerification

ENDED_MS = 1_796_000_000_000
ENDED = "2026-11-30T00:53:20.000Z"
EQUAL = {"total": 4, "equal": 4, "reordered": 0, "different": 0, "undecided": 0}


def write(folder: Path, run: str = "1", **changes: Any) -> None:
    result = {
        "runId": run,
        "flow": "east-to-west",
        "source": "east",
        "target": "west",
        "windows": EQUAL,
        "differences": 0,
        "ended": ENDED,
        **changes,
    }
    path = folder / f"run-{run}"
    path.mkdir(parents=True)
    (path / "verification.json").write_text(json.dumps(result))


def found(folder: Path) -> LastVerification | None:
    return last_verification(folder, "east-to-west", "east", "west")


def test_the_newest_verdict_of_the_flow_counts(tmp_path: Path):
    write(tmp_path, "old", ended="2026-11-29T05:00:00Z")
    write(tmp_path, "new")
    write(tmp_path, "other", ended="2026-11-30T09:00:00Z", flow="west-to-east")
    write(tmp_path, "back", ended="2026-11-30T09:00:00Z", source="west", target="east")

    assert LastVerification(run="new", ended_ms=ENDED_MS, is_equal=True) == found(tmp_path)


def test_a_newer_verification_with_differences_counts(tmp_path: Path):
    write(tmp_path, "old", ended="2026-11-29T05:00:00Z")
    write(tmp_path, "new", windows={**EQUAL, "equal": 3, "reordered": 1})

    assert LastVerification(run="new", ended_ms=ENDED_MS, is_equal=False) == found(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"ended": None},
        {"ended": "2026-11-30T00:53:20"},
        {"windows": {**EQUAL, "equal": 3, "undecided": 1}},
        {"windows": {**EQUAL, "total": 0, "equal": 0}},
        {"windows": None},
    ],
    ids=["no-end", "no-time-zone", "undecided", "nothing-compared", "no-windows"],
)
def test_a_result_without_a_verdict_and_its_time_does_not_count(tmp_path: Path, changes: dict[str, Any]):
    write(tmp_path, **changes)

    assert found(tmp_path) is None


def test_a_file_that_is_no_result_is_left_out(tmp_path: Path):
    (tmp_path / "verification.json").write_text("{")

    assert found(tmp_path) is None


def test_a_folder_that_does_not_exist_is_refused_by_its_name(tmp_path: Path):
    with pytest.raises(UsageError, match=r"--verification: .*missing is not a folder"):
        found(tmp_path / "missing")
