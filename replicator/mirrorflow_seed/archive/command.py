"""Runs `mirrorflow-seed export` and `restore`, and `verify` with an archive."""

import argparse

from mirrorflow_seed.archive import exporting, restoring, verifying
from mirrorflow_seed.settings import FlowFiles, JobSettings


def execute(arguments: argparse.Namespace, files: FlowFiles, job: JobSettings) -> int:
    """Runs the job that `arguments.command` names and returns its exit status."""
    run = {"export": exporting.run, "restore": restoring.run, "verify": verifying.run}[arguments.command]
    return run(files, job)
