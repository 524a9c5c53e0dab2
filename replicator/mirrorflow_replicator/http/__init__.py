"""The HTTP server and client of a replicator: Kafka Connect's REST API, /progress, /metrics."""
