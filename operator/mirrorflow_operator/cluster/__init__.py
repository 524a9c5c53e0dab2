"""Talks to the cluster: requests to the Kubernetes API, watches, the Lease, and polls of pods."""

import mirrorflow_kubernetes  # noqa: F401  before kopf, which imports all of the package `kubernetes`
