"""Translates consumer group offsets: offset map, offset syncs, checkpoints and group selection."""
