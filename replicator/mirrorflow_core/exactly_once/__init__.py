"""Exactly-once logic without I/O (docs/exactly-once.md): identity, sequencing, resumption, succession."""
