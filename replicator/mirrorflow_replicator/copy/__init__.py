"""Copies partitions: a task, its partition copiers, their shared transaction, and the writers of their offsets."""
