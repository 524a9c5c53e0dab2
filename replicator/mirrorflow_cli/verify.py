"""`mirrorflow verify`: both clusters of a flow compared on this machine, by Spark on its own cores.

The job is the cluster's own (`mirrorflow_seed.verify`), loaded when it is asked for, because it wants PySpark and Java.
Nothing is written to either cluster. Exit status: 0 every window that was looked at is equal; 1 one is not, or could not be
decided; 2 the arguments or the file are wrong.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mirrorflow_cli.errors import EXIT_SIGNAL_BASE, FailedError, UsageError
from mirrorflow_cli.files import ProcessFiles
from mirrorflow_cli.flows import add_flow_arguments, flow_from, layout_from
from mirrorflow_operator.plan.plan import ConnectorKind, plan_of_all

if TYPE_CHECKING:
    from mirrorflow_seed.report import Report

BAR_CELLS: Final = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `mirrorflow verify`."""
    add_flow_arguments(parser, addresses=True)
    parser.add_argument(
        "--sample", metavar="SHARE", help="the share of windows to compare, as 0.1 (default: 1)"
    )
    parser.add_argument(
        "--run-id", metavar="NAME", help="names the run, and which windows a sample takes (default: 1)"
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help="write the table of windows (Parquet), verification.json and report.html below it",
    )
    parser.add_argument(
        "--cores", metavar="N", type=int, help="how many of this machine's cores to use (default: all)"
    )
    parser.add_argument(
        "--ignore-timestamps", action="store_true", help="compare all but timestamps, on every topic"
    )
    parser.add_argument(
        "--decode-all",
        action="store_true",
        help="digest every record, also of batches that are the same bytes",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Compare; the exit status."""
    from mirrorflow_seed.errors import EXIT_STOPPED, SeedError  # noqa: PLC0415 the extra `seed`
    from mirrorflow_seed.settings import FlowFiles, job_of  # noqa: PLC0415
    from mirrorflow_seed.verify.command import output_folder, run  # noqa: PLC0415

    planned = plan_of_all(flow_from(arguments), layout_from(arguments))
    source = next(one for one in planned.connectors if one.kind is ConnectorKind.SOURCE)
    given = {
        "run.id": arguments.run_id,
        "sample": arguments.sample,
        "output": str(Path(arguments.out).expanduser().resolve()) if arguments.out else None,
        "master": f"local[{arguments.cores}]" if arguments.cores else None,
        "ignore.timestamps": "true" if arguments.ignore_timestamps else None,
        "decode.all": "true" if arguments.decode_all else None,
        "spark.log.level": "ERROR",
    }
    bar = _Bar()
    with tempfile.TemporaryDirectory(prefix="mirrorflow-verify-") as folder:
        files = ProcessFiles(folder=Path(folder), connectors=(source.name,))
        files.write(source.worker_properties, {source.name: source.connector_properties})
        paths = FlowFiles(worker=str(files.worker), source=str(files.connector(source.name)))
        try:
            job = job_of({key: value for key, value in given.items() if value is not None})
            status = run(paths, job, display=bar)
        except SeedError as error:
            bar.end()
            kind = UsageError if error.status == UsageError.status else FailedError
            raise kind(str(error)) from error
        finally:
            bar.end()
    print(bar.message)
    if arguments.out:
        print(f"The windows, a summary and a page are in {output_folder(job.output, job.run_id)}.")
    return EXIT_SIGNAL_BASE + 15 if status == EXIT_STOPPED else status


class _Bar:
    """How far it is, on a line of stderr that is drawn anew; without a terminal a line whenever a tenth more is done."""

    def __init__(self) -> None:
        self.message = ""
        self._is_terminal = sys.stderr.isatty()
        self._shown = -1
        self._is_open = False

    def __call__(self, report: "Report") -> None:
        """Show *report*."""
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

    def end(self) -> None:
        """Leave the line."""
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
