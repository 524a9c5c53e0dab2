"""Records and protocols of Kafka Connect and MirrorMaker 2, in Java's bytes."""
