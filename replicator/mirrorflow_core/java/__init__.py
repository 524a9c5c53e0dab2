"""Java's text formats: properties, JAAS, JSON, durations, regular expressions, secret references."""
