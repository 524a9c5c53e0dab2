"""Seeds a target: copies what a source holds with Spark tasks while the connector waits."""
