"""Writes the report of a switchover into files: JSON, or a page, by the suffix of the name.

A file is replaced as a whole, so a command that is killed leaves the earlier one or the new one.
"""

import argparse
import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from mirrorflow_cli.errors import FailedError, UsageError
from mirrorflow_cli.output import print_json

JSON_SUFFIX: Final = ".json"
PAGE_SUFFIX: Final = ".html"


def check_report_files(names: Sequence[str]) -> None:
    """Raises UsageError for a file that cannot become a report: a switchover must not end without one."""
    for name in names:
        path = Path(name)
        if path.suffix.lower() not in {JSON_SUFFIX, PAGE_SUFFIX}:
            raise UsageError(
                f"--report: {name} ends neither in {JSON_SUFFIX} nor in {PAGE_SUFFIX}; choose one of them."
            )
        if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise UsageError(
                f"--report: {name} cannot be written; name a file in a folder that you may write to."
            )


def write_result(arguments: argparse.Namespace, report: dict[str, Any], sentences: list[str]) -> None:
    """Prints the result, and writes the report if there is to be one."""
    # The switchover has ended: that no process reads how changes neither the report nor the exit status. Any other error of
    # stdout, as of a terminal that is closed, ends the command with a report.
    try:
        with contextlib.suppress(BrokenPipeError):
            if arguments.json:
                print_json(report)
            else:
                print("\n".join(sentences))
    finally:
        write_report_files(arguments.report_files, report)


def write_report_files(names: Sequence[str], report: Mapping[str, Any]) -> None:
    """Writes *report* into each file. Raises FailedError."""
    for name in names:
        path = Path(name)
        # Beside it, because only a file of the same file system can replace it.
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            unfinished.write_text(_text(path, report), encoding="utf-8")
            unfinished.replace(path)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            raise FailedError(f"--report: {name} cannot be written: {error.strerror}.") from error


def _text(path: Path, report: Mapping[str, Any]) -> str:
    if path.suffix.lower() == JSON_SUFFIX:
        return json.dumps(report, indent=2) + "\n"
    # Only a page needs the package.
    from mirrorflow_cli.switchover_page import switchover_page  # noqa: PLC0415

    newest = report.get("newest", report)  # `status` reports the pair
    if newest is None:
        raise FailedError(f"--report: {path} has nothing to show: {report['pair']} was never switched over.")
    return switchover_page(newest, written=datetime.now(tz=UTC))
