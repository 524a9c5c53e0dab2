"""What `mirrorflow switchover status` says of records that groups would read again."""

from mirrorflow_cli.switchover_report import predicted_report, predicted_sentence
from mirrorflow_replicator.switchover.read_again import ReadAgain


def test_records_and_seconds_that_groups_would_read_again_are_shown():
    predicted = ReadAgain(groups=3, planned_records=0, lost_records=1_234, lost_s=2.5)

    assert predicted_sentence(predicted) == (
        "If applications were moved now, 3 consumer groups would read 0 records again at most; without the active member, 1,234 records, which "
        "they have read in the last 2.5 s."
    )
    assert predicted_report(predicted) == {
        "groups": 3,
        "recordsReadAgain": 0,
        "ifSourceIsLost": {"recordsReadAgain": 1_234, "secondsReadAgain": 2.5},
    }


def test_an_unknown_count_is_shown_as_unknown():
    predicted = ReadAgain(groups=3, planned_records=None, lost_records=None, lost_s=None)

    assert "would read an unknown number of records again" in predicted_sentence(predicted)
    assert predicted_report(predicted)["recordsReadAgain"] is None


def test_a_status_without_a_prediction_has_the_reason():
    why = "It is unknown what groups would read again: both clusters have to respond."

    assert predicted_report(why) == {"recordsReadAgain": None, "why": why}
    assert predicted_sentence(why) == why
