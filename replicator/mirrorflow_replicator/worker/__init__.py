"""Worker processes: herders, the group that shares connectors, and the tasks they start."""
