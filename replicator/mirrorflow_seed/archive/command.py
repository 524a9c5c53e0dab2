"""`mirrorflow-seed export` and `mirrorflow-seed restore`; and `verify`, where it is told of an archive."""

import argparse

from mirrorflow_seed.archive import exporting, restoring, verifying
from mirrorflow_seed.settings import FlowFiles, JobSettings


def execute(arguments: argparse.Namespace, files: FlowFiles, job: JobSettings) -> int:
    """The exit status of the job that `arguments.command` names."""
    run = {"export": exporting.run, "restore": restoring.run, "verify": verifying.run}[arguments.command]
    return run(files, job)
