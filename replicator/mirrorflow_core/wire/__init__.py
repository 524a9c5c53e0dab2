"""Kafka record batches, and the fetch and produce messages that carry them, as bytes."""
