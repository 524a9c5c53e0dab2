"""Task configs are written as by Java's connectors, are read back, and keep references unresolved."""

from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.connect import worker_state
from mirrorflow_core.partitions import TopicPartition

PROPERTIES = {"name": "a", "source.cluster.sasl.jaas.config": "${file:/etc/secret:jaas}"}
TOPICS = st.text("abz019._-", min_size=1, max_size=20)
ASSIGNMENTS = st.lists(
    st.lists(st.builds(TopicPartition, TOPICS, st.integers(0, 10_000)), unique=True, max_size=5).map(tuple),
    max_size=4,
).map(tuple)


@given(ASSIGNMENTS)
def test_assigned_partitions_are_decoded_as_encoded(
    assignment: tuple[tuple[TopicPartition, ...], ...],
) -> None:
    tasks = worker_state.source_task_configs(PROPERTIES, assignment, initial=False)
    assert [sorted(task) for task in assignment] == [
        [*worker_state.task_partitions(config)] for config in tasks
    ]
    assert [str(number) for number in range(len(assignment))] == [config["task.index"] for config in tasks]
    assert all(config.items() >= PROPERTIES.items() for config in tasks)


def test_the_initial_flag_does_not_make_tasks_different() -> None:
    assignment = ((TopicPartition("t-1", 0),),)
    new, old = (
        worker_state.source_task_configs(PROPERTIES, assignment, initial=initial) for initial in (True, False)
    )
    assert worker_state.is_initial_task(new[0])
    assert not worker_state.is_initial_task(old[0])
    assert worker_state.are_same_tasks(new, old)
    assert not worker_state.are_same_tasks(new, None)
    assert not worker_state.are_same_tasks(new, worker_state.single_task_config(PROPERTIES))


def test_malformed_partitions_are_ignored() -> None:
    task = {"task.assigned.partitions": "t-1,,nothing,-3,u-x, v-2"}
    assert (TopicPartition("t", 1), TopicPartition("v", 2)) == worker_state.task_partitions(task)
    assert () == worker_state.task_partitions({})
