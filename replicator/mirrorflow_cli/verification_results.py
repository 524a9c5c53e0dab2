"""Finds the last verification of a flow among the results that `mirrorflow verify --out FOLDER` has written."""

import argparse
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from mirrorflow_cli.errors import UsageError
from mirrorflow_core.switchover.last_verification import LastVerification

OPTION: Final = "--verification"
NOT_GIVEN: Final = f"{OPTION} does not name the folder of `mirrorflow verify --out`"
SUMMARY: Final = "verification.json"  # the writer is mirrorflow_seed's `result_folder`
RESULTS_MAX: Final = 1_000  # runs in a folder that are read, the newest names first
FILE_MAX_BYTES: Final = 16 * 1024 * 1024


def add_verification_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the option that names the folder."""
    parser.add_argument(
        OPTION,
        metavar="FOLDER",
        help="folder of `mirrorflow verify --out`, in which spec.readiness.verifiedWithinSeconds looks for the last verification",
    )


def last_verification(folder: Path, flow: str, source: str, target: str) -> LastVerification | None:
    """Returns the newest verification of *flow* below *folder* whose verdict is equal or different; None if there is none.

    *source*, *target*: the aliases of its clusters. Raises UsageError if *folder* is none.
    """
    if not folder.is_dir():
        raise UsageError(
            f"{OPTION}: {folder} is not a folder of this machine; name that of `mirrorflow verify --out`."
        )
    verifications = [
        verification
        for result in _results(folder)
        if (result.get("flow"), result.get("source"), result.get("target")) == (flow, source, target)
        and (verification := _verification(result)) is not None
    ]
    return max(verifications, key=lambda verification: verification.ended_ms, default=None)


def _results(folder: Path) -> Iterator[Mapping[str, Any]]:
    runs = sorted(folder.glob(f"run-*/{SUMMARY}"), reverse=True)[:RESULTS_MAX]
    for path in (folder / SUMMARY, *runs):
        try:
            if path.stat().st_size > FILE_MAX_BYTES:
                continue
            result = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(result, dict):
            yield result


def _verification(result: Mapping[str, Any]) -> LastVerification | None:
    """Returns the verdict of one result; None if it has none, such as with windows that could not be compared, or no end."""
    ended_ms, windows = _milliseconds(result.get("ended")), result.get("windows")
    if ended_ms is None or not isinstance(windows, dict):
        return None
    counts = {name: windows.get(name) for name in ("total", "equal", "reordered", "different", "undecided")}
    if not all(isinstance(count, int) for count in counts.values()) or not counts["total"]:
        return None
    is_different = bool(result.get("differences") or counts["different"] or counts["reordered"])
    if not is_different and (counts["undecided"] or counts["equal"] != counts["total"]):
        return None
    return LastVerification(run=str(result.get("runId") or "-"), ended_ms=ended_ms, is_equal=not is_different)


def _milliseconds(text: object) -> int | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return None if moment.tzinfo is None else int(moment.timestamp() * 1000)
