"""A task report is encoded as one line."""

from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.reports import Guarantee, PartitionPhase, PartitionReport, TaskReport
from mirrorflow_replicator.connectors.report_lines import decode_report, encode_report

REPORTS = st.builds(
    TaskReport,
    task=st.integers(0, 99),
    state=st.sampled_from(["RUNNING", "FAILED", "UNASSIGNED"]),
    trace=st.text(max_size=30),
    partitions=st.lists(
        st.builds(
            PartitionReport,
            topic=st.text(max_size=9),
            target_topic=st.text(max_size=9),
            partition=st.integers(0, 999),
            phase=st.sampled_from(PartitionPhase),
            source_offset=st.integers(-1, 2**63 - 1),
            record_age_ms=st.floats(-1, 1e15),
            guarantee=st.sampled_from(Guarantee),
            reached_start_end=st.booleans(),
            message=st.text(max_size=30),
        ),
        max_size=3,
    ).map(tuple),
    errors=st.dictionaries(st.text(max_size=9), st.integers(0, 2**40), max_size=3),
    throttle_ms=st.integers(0, 2**40),
    refused_settings=st.lists(st.text(max_size=9), max_size=3).map(tuple),
)


@given(REPORTS)
def test_a_decoded_report_equals_the_encoded_one(report):
    """Line breaks in texts are escaped."""
    line = encode_report(report)

    assert report == decode_report(line)
    assert (1, b"\n") == (line.count(b"\n"), line[-1:])
