"""`mirrorflow restore`: a cluster filled from an archive, by Spark on this machine."""

import argparse

from mirrorflow_cli.archive import add_archive_arguments, run_archive_job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `mirrorflow restore`."""
    add_archive_arguments(parser)
    parser.add_argument(
        "--foreign-records",
        choices=("refuse", "accept"),
        default="refuse",
        help="target topics that hold records of others (default: refuse)",
    )
    parser.add_argument(
        "--no-compare", action="store_true", help="do not read the target once more and compare it"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Restore; the exit status."""
    more = {"foreign.records": arguments.foreign_records}
    if arguments.no_compare:
        more["archive.compare"] = "false"
    return run_archive_job(arguments, "archive.restoring", more)
