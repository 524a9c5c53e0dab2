"""Talks to Confluent-compatible schema registries by HTTP."""
