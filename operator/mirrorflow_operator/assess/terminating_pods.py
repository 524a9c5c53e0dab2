"""Detects pods of an earlier spec, which follow that spec until they have ended. Pure."""

from mirrorflow_operator.assess.observation import ConnectorSeen


def has_pods(seen: ConnectorSeen) -> bool:
    """Whether a pod of the connector may still run."""
    return any(pod.is_alive for pod in seen.pods)


def has_pods_of_before(seen: ConnectorSeen) -> bool:
    """Whether a pod of an earlier spec, or a terminating one, may still run."""
    running = [pod for pod in seen.pods if pod.is_alive]
    found = seen.deployment
    replaces = found is not None and (
        found.observed_generation < found.generation or found.replicas > found.updated
    )
    return any(pod.deleting for pod in running) or (bool(running) and (replaces or seen.is_moving))
