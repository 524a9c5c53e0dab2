"""Runs `mirrorflow-seed export` and `restore`, and `verify` with an archive."""

import argparse

from mirrorflow_seed.archive import archive_verification, export_driver, restore_driver
from mirrorflow_seed.settings import FlowFiles, JobSettings


def execute(arguments: argparse.Namespace, files: FlowFiles, job: JobSettings) -> int:
    """Runs the job that `arguments.command` names and returns its exit status."""
    run = {"export": export_driver.run, "restore": restore_driver.run, "verify": archive_verification.run}[
        arguments.command
    ]
    return run(files, job)
