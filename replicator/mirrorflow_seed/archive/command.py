"""`mirrorflow-seed export` and `mirrorflow-seed restore`."""

import argparse

from mirrorflow_seed.archive import exporting, restoring
from mirrorflow_seed.settings import FlowFiles, JobSettings


def execute(arguments: argparse.Namespace, files: FlowFiles, job: JobSettings) -> int:
    """The exit status of the job that `arguments.command` names."""
    run = {"export": exporting.run, "restore": restoring.run}[arguments.command]
    return run(files, job)
