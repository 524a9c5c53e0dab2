"""The three connectors: source, checkpoint and heartbeat, and what each does besides copying."""
