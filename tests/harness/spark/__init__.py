"""Spark clusters of this machine for the tests."""
