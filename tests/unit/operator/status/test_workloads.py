"""The problems of a pod that does not run are derived from the events and states that Kubernetes reports."""

import pytest

from mirrorflow_operator.status.conditions import Reason
from mirrorflow_operator.status.observation import PodEvent
from mirrorflow_operator.status.pod_failures import pod_problems, workload_of
from tests.unit.operator.observations import NOW_S, connector, pod


def reasons(message: str) -> list[Reason]:
    """Returns the reasons of a pod that is being created and has a FailedMount event with *message*."""
    event = PodEvent(reason="FailedMount", message=message, last_seen_s=NOW_S - 1)
    waiting = pod(ready=False, started_s=None, waiting_reason="ContainerCreating", events=(event,))
    return [problem.reason for problem in pod_problems(waiting, "source connector", "spec", None, NOW_S)]


@pytest.mark.parametrize("kind", ["configmap", "secret"])
def test_an_outdated_kubelet_cache_is_not_a_problem(kind: str) -> None:
    """The kubelet retries within seconds."""
    message = f'MountVolume.SetUp failed for volume "a" : failed to sync {kind} cache: timed out waiting for the condition'

    assert [] == reasons(message)


def test_a_volume_that_cannot_be_mounted_is_a_problem() -> None:
    assert [Reason.VOLUME_NOT_MOUNTED] == reasons(
        'MountVolume.SetUp failed for volume "a" : permission denied'
    )


def test_the_last_end_of_an_evicted_pod_is_no_problem_of_its_successor() -> None:
    """Kubernetes keeps the evicted pod for as long as it has room for it."""
    killed = {"terminated_reason": "OOMKilled", "exit_code": 137, "restarts": 1, "started_s": None}
    evicted = pod(name="evicted", ready=False, phase="Failed", **killed)
    starting = pod(name="starting", ready=False, phase="Pending", started_s=None, created_s=NOW_S)

    workload = workload_of(connector(pods=(evicted, starting)), flow=None, now_s=NOW_S)

    assert workload.problem is None
