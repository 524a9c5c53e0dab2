"""Reads the seeds, verifications, exports and restores that run on this machine for this user."""

from mirrorflow_cli.running_jobs import running_jobs
from mirrorflow_console.job_views import JobView, running_job_view


class LocalJobs:
    """The jobs that `mirrorflow seed`, `verify`, `archive` and `restore` carry out now. Those that have ended are gone."""

    def read(self) -> list[JobView]:
        """Returns the running jobs, oldest first."""
        return [running_job_view(job.flow, job.began_ms / 1000, job.report) for job in running_jobs()]
