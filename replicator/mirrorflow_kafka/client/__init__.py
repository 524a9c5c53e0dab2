"""The Kafka client: connections, bootstrap, metadata, requests, and reading and writing record batches."""
