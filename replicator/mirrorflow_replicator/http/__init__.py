"""The HTTP server of a replicator: Kafka Connect's REST API, /progress, /metrics."""
