"""Selects the topics to copy and names their copies: topic selection, replication policies, transforms."""
