"""The replicator process: a Kafka Connect worker that runs MirrorMaker 2's connectors and copies record batches."""
