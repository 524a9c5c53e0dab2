"""Decides how a task copies its partitions: no I/O, no clock."""
