"""The documents of several pods of a connector are merged: counts are sums, and the state is the worst of them."""

from mirrorflow_console.documents import FlowReading, connector_document
from mirrorflow_console.flow_views import Level, flow_view
from mirrorflow_console.merged_documents import merged
from tests.unit.console.flow_readings import STOPPED, UNREACHABLE, healthy, table
from tests.unit.http.reports import partition


def view(*reports):
    document = merged([connector_document(table(report)) for report in reports])
    return document, flow_view(FlowReading(key="f", name="f", document=document))


def test_a_single_document_is_unchanged():
    document = connector_document(table(healthy(partition(0))))

    assert merged([document]) is document


def test_partitions_and_counts_of_pods_are_added():
    document, flow = view(healthy(partition(0), partition(1)), healthy(partition(2, source_offset=50)))

    assert document.partitions.column("partition") == [2, 0, 1]
    assert (flow.partitions, flow.lag, flow.records) == (3, "70", 270)
    assert document.progress.summary["partitions"]["copying"] == 3


def test_a_problem_of_one_pod_is_a_problem_of_the_flow():
    _, flow = view(healthy(partition(0)), healthy(partition(1, **STOPPED)))

    assert (flow.level, flow.stopped) == (Level.BROKEN, 1)
    assert flow.troubles[0].subject == "orders-1"


def test_a_cluster_that_one_pod_cannot_reach_is_a_problem_of_the_flow():
    _, flow = view(healthy(partition(0)), healthy(partition(1), target=UNREACHABLE))

    assert flow.target_level is Level.BROKEN
    assert [trouble.subject for trouble in flow.troubles] == ["target"]
