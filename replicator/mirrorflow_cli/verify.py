"""`mirrorflow verify`: both clusters of a flow compared on this machine, by Spark on its own cores.

Nothing is written to either cluster. Exit status: 0 every window that was looked at is equal; 1 one is not, or could not be
decided; 2 the arguments or the file are wrong.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from mirrorflow_cli.jobs import add_job_arguments, run_job

BAR_CELLS: Final = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `mirrorflow verify`."""
    add_job_arguments(parser)
    parser.add_argument(
        "--sample", metavar="SHARE", help="the share of windows to compare, as 0.1 (default: 1)"
    )
    parser.add_argument(
        "--run-id",
        metavar="ID",
        default="1",
        help="names the run, and decides which windows a sample takes (default: 1)",
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help="write the table of windows (Parquet), verification.json and report.html below it",
    )
    parser.add_argument(
        "--ignore-timestamps", action="store_true", help="compare all but timestamps, on every topic"
    )
    parser.add_argument(
        "--decode-all", action="store_true", help="digest every record, also where batches are the same bytes"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Compare; the exit status."""
    properties = {"run.id": arguments.run_id}
    if arguments.sample is not None:
        properties["sample"] = arguments.sample
    if arguments.out is not None:
        properties["output"] = str(Path(arguments.out).expanduser().resolve())
    for key, is_set in (
        ("ignore.timestamps", arguments.ignore_timestamps),
        ("decode.all", arguments.decode_all),
    ):
        if is_set:
            properties[key] = "true"
    display = _JsonLines() if arguments.json else _Bar()
    try:
        status = run_job(arguments, "verify.command", properties, display.show)
    finally:
        display.close()
    if not arguments.json:
        print(display.message)
        if arguments.out is not None:
            from mirrorflow_seed.verify.command import output_folder  # noqa: PLC0415 the extra `seed`

            print(f"Result: {output_folder(properties['output'], arguments.run_id)}")
    return status


class _JsonLines:
    message = ""

    def show(self, report: Any) -> None:
        print(json.dumps(report.as_json()), flush=True)

    def close(self) -> None:
        """Nothing is held back."""


class _Bar:
    """How far it is, on a line of stderr that is drawn anew; without a terminal a line whenever a tenth more is done."""

    def __init__(self) -> None:
        self.message = ""
        self._is_terminal = sys.stderr.isatty()
        self._shown = -1
        self._is_open = False

    def show(self, report: Any) -> None:
        said = report.as_json()
        self.message = said["message"] or self.message
        windows = said["windows"]
        total = windows["total"]
        done = total and sum(windows[name] for name in ("equal", "reordered", "different", "undecided"))
        if not total:
            return
        share = min(1.0, done / total)
        if not self._is_terminal:
            if int(share * 10) > self._shown:
                self._shown = int(share * 10)
                print(self._line(said, done, share), file=sys.stderr, flush=True)
            return
        filled = round(share * BAR_CELLS)
        line = f"\r\x1b[K{'█' * filled}{'░' * (BAR_CELLS - filled)} {self._line(said, done, share)}"
        print(line, end="", file=sys.stderr, flush=True)
        self._is_open = True

    def close(self) -> None:
        if self._is_open:
            print(file=sys.stderr)
            self._is_open = False

    @staticmethod
    def _line(said: dict[str, object], done: int, share: float) -> str:
        windows = said["windows"]
        assert isinstance(windows, dict)
        parts = [f"{share:4.0%}", f"{done} of {windows['total']} windows"]
        parts += [
            f"{windows[name]} {name}" for name in ("different", "reordered", "undecided") if windows[name]
        ]
        parts.append(f"{said['sourceRecords']:,} + {said['targetRecords']:,} records")
        return ", ".join(parts)
