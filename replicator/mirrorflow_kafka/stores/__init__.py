"""Stores of a flow's own data: decisions, source offsets, and internal topics of Kafka Connect and MM2."""
