"""Verifies a copy: compares the records of both clusters with Spark, read-only."""
