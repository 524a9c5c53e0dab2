"""The Kubernetes operator: turns each MirrorFlow resource into connector pods and Spark jobs, and reports their status."""
