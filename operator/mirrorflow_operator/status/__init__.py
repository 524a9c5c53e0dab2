"""Computes the status from the observed state: pure, total, and never better than what was observed."""
