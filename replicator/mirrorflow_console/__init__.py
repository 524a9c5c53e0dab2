"""The console: read-only pages about flows, on a laptop and in a cluster (docs/console.md)."""
