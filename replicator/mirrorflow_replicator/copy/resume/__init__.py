"""Finds where each partition continues: identity, start of the stream, comparison of both logs."""
