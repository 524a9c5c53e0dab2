"""`mirrorflow-seed verify`."""

import argparse

from mirrorflow_seed.errors import JobFailedError
from mirrorflow_seed.outlet import Display
from mirrorflow_seed.settings import FlowFiles, JobSettings


def execute(arguments: argparse.Namespace, files: FlowFiles, job: JobSettings) -> int:  # noqa: ARG001 a stub
    """The exit status of the job."""
    return run(files, job)


def run(files: FlowFiles, job: JobSettings, *, display: Display | None = None) -> int:  # noqa: ARG001 a stub
    """The job itself, also for the command on a laptop; the exit status."""
    raise JobFailedError("`verify` is not there yet.")
