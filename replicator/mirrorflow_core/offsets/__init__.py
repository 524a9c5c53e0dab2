"""Consumer group offsets: how they are translated, and which checkpoints and commits are due. Pure."""
