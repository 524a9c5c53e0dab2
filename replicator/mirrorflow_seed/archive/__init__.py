"""Writes the records of source topics to Parquet files, and restores them to a target."""
