"""Talks to the cluster: requests to the Kubernetes API, watches, the Lease, and polls of pods."""
