"""`mirrorflow-seed export` and `mirrorflow-seed restore`."""

import argparse

from mirrorflow_seed.archive.exporting import export
from mirrorflow_seed.archive.restoring import restore
from mirrorflow_seed.settings import FlowFiles, JobSettings


def execute(arguments: argparse.Namespace, files: FlowFiles, job: JobSettings) -> int:
    """The exit status of the job that `arguments.command` names."""
    return {"export": export, "restore": restore}[arguments.command](files, job)
