"""Several pods of one connector are one flow: counts are sums, and the worst state is the flow's."""

from mirrorflow_console.documents import FlowReading, connector_document
from mirrorflow_console.flow_views import Level, flow_view
from mirrorflow_console.merged_documents import merged
from tests.unit.console.worlds import STOPPED, UNREACHABLE, healthy, table
from tests.unit.http.reports import partition


def view(*reports):
    found = merged([connector_document(table(one)) for one in reports])
    return found, flow_view(FlowReading(key="f", name="f", document=found))


def test_one_pod_stays_as_it_is():
    document = connector_document(table(healthy(partition(0))))

    assert merged([document]) is document


def test_partitions_and_counts_of_pods_are_added():
    found, shown = view(healthy(partition(0), partition(1)), healthy(partition(2, source_offset=50)))

    assert [row["partition"] for row in found.progress.partitions] == [2, 0, 1]
    assert (shown.partitions, shown.lag, shown.records) == (3, "70", 270)
    assert found.progress.summary["partitions"]["copying"] == 3


def test_trouble_of_one_pod_is_that_of_the_flow():
    _, shown = view(healthy(partition(0)), healthy(partition(1, **STOPPED)))

    assert (shown.level, shown.stopped) == (Level.BROKEN, 1)
    assert shown.troubles[0].subject == "orders-1"


def test_cluster_that_one_pod_cannot_use_is_not_hidden_by_the_others():
    _, shown = view(healthy(partition(0)), healthy(partition(1), target=UNREACHABLE))

    assert shown.target_level is Level.BROKEN
    assert [one.subject for one in shown.troubles] == ["target"]
