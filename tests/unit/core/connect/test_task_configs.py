"""Task configs: written as Java's connectors write them, read back, and never holding what a host has resolved."""

from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.connect import task_configs
from mirrorflow_core.partitions import TopicPartition

PROPERTIES = {"name": "a", "source.cluster.sasl.jaas.config": "${file:/etc/secret:jaas}"}
TOPICS = st.text("abz019._-", min_size=1, max_size=20)
ASSIGNMENTS = st.lists(
    st.lists(st.builds(TopicPartition, TOPICS, st.integers(0, 10_000)), unique=True, max_size=5).map(tuple),
    max_size=4,
).map(tuple)


@given(ASSIGNMENTS)
def test_partitions_are_read_as_they_were_written(assignment: tuple[tuple[TopicPartition, ...], ...]) -> None:
    tasks = task_configs.of_source(PROPERTIES, assignment, initial=False)
    assert [sorted(task) for task in assignment] == [[*task_configs.partitions(one)] for one in tasks]
    assert [str(number) for number in range(len(assignment))] == [one["task.index"] for one in tasks]
    assert all(one.items() >= PROPERTIES.items() for one in tasks)


def test_a_flow_that_is_no_longer_new_has_the_same_work() -> None:
    assignment = ((TopicPartition("t-1", 0),),)
    new, old = (task_configs.of_source(PROPERTIES, assignment, initial=initial) for initial in (True, False))
    assert task_configs.is_initial(new[0])
    assert not task_configs.is_initial(old[0])
    assert task_configs.are_same(new, old)
    assert not task_configs.are_same(new, None)
    assert not task_configs.are_same(new, task_configs.of_one(PROPERTIES))


def test_what_is_no_partition_is_passed_over() -> None:
    task = {"task.assigned.partitions": "t-1,,nothing,-3,u-x, v-2"}
    assert (TopicPartition("t", 1), TopicPartition("v", 2)) == task_configs.partitions(task)
    assert () == task_configs.partitions({})
