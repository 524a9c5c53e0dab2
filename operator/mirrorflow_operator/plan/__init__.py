"""Plans the desired state of a flow: pure functions from a MirrorFlow and observed facts to Kubernetes objects."""
