"""Executes the requests of `mirrorflow_core.writer` against the brokers of a source and a target cluster."""
