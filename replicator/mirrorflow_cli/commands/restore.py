"""`mirrorflow restore`: fills a cluster from an archive with Spark on this machine."""

import argparse

from mirrorflow_cli.commands.archive import add_archive_arguments, run_archive_job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_archive_arguments(parser, writes=True)
    parser.add_argument(
        "--until",
        metavar="TIMESTAMP",
        help="restore each partition up to its first record that is later, such as 2026-11-22T13:00:00Z",
    )
    parser.add_argument(
        "--partition",
        metavar="TOPIC-NUMBER[:FROM:TO]",
        action="append",
        help="restore only this partition, or its source offsets FROM up to (not including) TO; repeatable",
    )
    parser.add_argument("--no-compare", action="store_true", help="skip the comparison after the restore")


def execute(arguments: argparse.Namespace) -> int:
    more = {"archive.compare": "false"} if arguments.no_compare else {}
    if arguments.until is not None:
        more["archive.until"] = arguments.until
    if arguments.partition:
        more["archive.partitions"] = ",".join(arguments.partition)
    return run_archive_job(arguments, "archive.restore_driver", more)
