"""Spark jobs for bulk work: seed a target, verify a copy, write an archive, restore one."""
