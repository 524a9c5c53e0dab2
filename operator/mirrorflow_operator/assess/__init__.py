"""What was seen -> what the status says: pure, total, and never better than what was seen."""
