"""The `mirrorflow` command: checks, plans, runs and converts flows on one machine, and starts Spark jobs."""
