"""Spark's own Kubernetes backend: the driver's conf, and the command line of an executor."""

from collections.abc import Mapping, Sequence

from mirrorflow_seed.errors import SparkMissingError
from mirrorflow_seed.settings import JobSettings


def conf(job: JobSettings, environment: Mapping[str, str]) -> dict[str, str]:  # noqa: ARG001 a stub
    """What a driver in a pod tells Spark."""
    raise SparkMissingError("Seeding on Kubernetes is not there yet; use master=local[*].")


def execute(arguments: Sequence[str]) -> int:  # noqa: ARG001 a stub
    """Become the executor that Spark's environment variables describe; returns only if that fails."""
    raise SparkMissingError("Executors are not there yet; use master=local[*].")
