"""`mirrorflow-seed export` and `mirrorflow-seed restore`."""

import argparse

from mirrorflow_seed.errors import JobFailedError
from mirrorflow_seed.settings import FlowFiles, JobSettings


def execute(arguments: argparse.Namespace, files: FlowFiles, job: JobSettings) -> int:  # noqa: ARG001 a stub
    """The exit status of the job that `arguments.command` names."""
    raise JobFailedError(f"`{arguments.command}` is not there yet.")
