"""Repairs what a verification has found: copies records that differ to a quarantine topic."""
