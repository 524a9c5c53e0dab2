"""Reads from and writes to the Kubernetes API; only kopf's watches, in `handlers`, are outside."""
