"""The report of a switchover is written to files, as JSON or as a page. Files are complete, and names are escaped."""

import errno
import io
import json
import re
import sys
from argparse import Namespace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_cli.errors import FailedError, UsageError
from mirrorflow_cli.switchover_page import switchover_page
from mirrorflow_cli.switchover_report import canary_report, evidence_of, report_of
from mirrorflow_cli.switchover_report_files import check_report_files, write_report_files, write_result
from mirrorflow_core.switchover.canary import CanaryResult, CanaryTimeline
from mirrorflow_core.switchover.observation import ReadinessCheck, SealVerification
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.seal import PartitionSeal, Seal
from mirrorflow_core.switchover.states import SwitchoverState
from mirrorflow_replicator.switchover.acl_fence import CanaryTimes
from mirrorflow_replicator.switchover.final_groups import FinalGroup, GroupOutcome
from tests.unit.cli.commands.test_switchover import CREATED_MS, record

WRITTEN = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
MARKUP = '<script>alert("x")</script><img src=x onerror=alert(1)>'
# Elements that need no end tag.
VOID = {"meta", "br", "img", "link"}


class PageOutline(HTMLParser):
    """Collects the elements and attributes of a page, and its text without styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._is_style = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs
        self._is_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._is_style = False

    def handle_data(self, data: str) -> None:
        if not self._is_style:
            self.text += data


def sealed(name: str, *, reason: str = "") -> SwitchoverRecord:
    """Returns a finished switchover of the topic *name*, whose pair has the same name."""
    done = record(
        (SwitchoverState.CHECKING, 0),
        (SwitchoverState.FENCING, 500),
        (SwitchoverState.PROMOTING, 2_000),
        (SwitchoverState.REVERSING, 2_250),
        (SwitchoverState.DONE, 9_000),
        reason=reason,
    )
    partition = PartitionSeal(
        topic=name,
        partition=3,
        topic_id="id",
        end=12_345,
        last_stable=12_345,
        copied=12_000,
        records=1_000,
        digest="5ea1ed",
    )
    seal = Seal(pair=name, switchover=done.id, epoch=1, attempt=1, partitions=(partition,))
    return done.revised(pair=name, seal=seal, runner="laptop/4711/ab12", attempt=1)


def report(name: str = "orders", **changes: Any) -> dict[str, Any]:
    """Returns the report of `sealed` with a group, checks and a verification. Each of them contains *name*."""
    done = sealed(name, reason=name)
    values: dict[str, Any] = {
        "notes": [f"A note on {name}."],
        "canary": CanaryTimes(refused_after_s=0.03, accepted_after_s=0.04),
        "groups": [
            FinalGroup(group=f"billing {name}", outcome=GroupOutcome.BOUND, repeats_max=42),
            FinalGroup(
                group="audit", outcome=GroupOutcome.REFUSED, repeats_max=None, why=f"{name}-3: it has members"
            ),
        ],
    }
    evidence = evidence_of(
        {
            ReadinessCheck.LAG: "",
            ReadinessCheck.ENDPOINT: f"{name} is no program.",
            ReadinessCheck.VERIFICATION: "",
        },
        SealVerification(seal_sha256=done.seal.sha256 if done.seal else "", differences=()),
        not_checked={ReadinessCheck.VERIFICATION: f"{name} requires none."},
    )
    return report_of(done, **(values | changes)) | evidence


def test_the_page_begins_with_the_outcome_and_has_each_field_of_the_report():
    done = report()
    outline = PageOutline(switchover_page(done, written=WRITTEN))
    text = " ".join(outline.text.split())

    assert "h1" in outline.elements
    assert text.index("west is the active member of orders. Writes were refused for 1.8 s.") < text.index(
        "From"
    )
    for part in (
        "Planned", "east", "west", "laptop/4711", "2023-11-14 22:13:20.000 UTC", "1.750 s", "60 s", "Promoting",
        done["seal"]["sha256"], "12,345", "5ea1ed", "1,000", "Both clusters are equal", "billing orders", "42", "unknown",
        "orders-3: it has members", "A note on orders.", "0.030 s", "passed", "failed", "orders requires none.", "2026-11-29 12:00:00.000 UTC",
    ):  # fmt: skip
        assert part in text, part


@pytest.mark.parametrize(
    ("counts", "total"), [((0, 42), 42), ((0, None), None)], ids=["known", "unknown of one group"]
)
def test_the_report_has_the_records_that_all_groups_read_again(
    counts: tuple[int | None, ...], total: int | None
):
    groups = [
        FinalGroup(group=f"group-{count}", outcome=GroupOutcome.BOUND, repeats_max=count) for count in counts
    ]

    assert total == report(groups=groups)["recordsReadAgain"]


@pytest.mark.parametrize(("again", "word"), [(0, "Passed."), (3, "Failed.")])
def test_the_page_shows_what_the_canary_application_has_measured(again: int, word: str):
    seen = CanaryResult(
        topic="orders.canary",
        group="canary",
        client="confluent-kafka 2.16.1",
        timeline=CanaryTimeline(last_acknowledged=1.0, accepted=2.25),
        acknowledged_records=100,
        refused_writes=30,
        refused_with="TOPIC_AUTHORIZATION_FAILED",
        read_records=90,
        source_offset=90,
        target_offset=91,
        read_again=again,
        skipped=0,
        problem="It has read 3 records again." if again else "",
    )

    page = " ".join(
        PageOutline(switchover_page(report() | canary_report(seen), written=WRITTEN)).text.split()
    )

    for part in (
        word,
        "orders.canary",
        "confluent-kafka 2.16.1",
        "30 (TOPIC_AUTHORIZATION_FAILED)",
        "1.250 s",
    ):
        assert part in page, part


@pytest.mark.parametrize("name", [MARKUP, "a' onmouseover='x", "{{ 7 * 7 }}", "</style><script>"])
def test_names_with_markup_are_escaped(name: str):
    page = switchover_page(report(name), written=WRITTEN)
    outline, plain = PageOutline(page), PageOutline(switchover_page(report(), written=WRITTEN))

    assert plain.elements == outline.elements
    assert not {attribute for attribute, _ in outline.attributes if attribute.startswith("on")}
    assert f"billing {name}" in outline.text


def test_the_page_runs_no_script_and_requests_nothing():
    page = switchover_page(report(), written=WRITTEN)
    outline = PageOutline(page)

    assert not {"script", "link", "img", "iframe", "object", "form"} & set(outline.elements)
    assert not {"src", "href", "action", "srcset"} & {name for name, _ in outline.attributes}
    assert not re.search(r"https?:|url\(|@import", page)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in outline.attributes


def test_unknown_fields_are_shown_on_the_page_as_json():
    page = switchover_page({**report(), "lost": [{"topic": MARKUP, "records": 7}]}, written=WRITTEN)

    assert '"records": 7' in PageOutline(page).text
    assert MARKUP not in page


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        ((), "It was never admitted."),
        (((SwitchoverState.CHECKING, 0), (SwitchoverState.REFUSED, 10)), "not refused"),
        (
            ((SwitchoverState.FENCING, 0), (SwitchoverState.DRAINING, 10)),
            "not accepted again since 2023-11-14",
        ),
    ],
    ids=["not-admitted", "refused", "under-way"],
)
def test_a_switchover_without_an_outcome_has_a_page(
    states: tuple[tuple[SwitchoverState, int], ...], sentence: str
):
    given = (
        record(*states)
        if states
        else SwitchoverRecord(
            id="1", pair="p", type=sealed("t").type, source="east", to="west", created_ms=CREATED_MS
        )
    )

    assert sentence in PageOutline(switchover_page(report_of(given), written=WRITTEN)).text


def test_the_suffix_of_a_file_selects_the_format_of_its_report(tmp_path: Path):
    files = [str(tmp_path / "report.json"), str(tmp_path / "Report.HTML")]
    check_report_files(files)
    write_report_files(files, report())

    assert json.loads((tmp_path / "report.json").read_text()) == report()
    assert (tmp_path / "Report.HTML").read_text().startswith("<!doctype html>")
    assert {"report.json", "Report.HTML"} == {path.name for path in tmp_path.iterdir()}


def test_the_page_of_a_pair_shows_its_newest_switchover(tmp_path: Path):
    file = tmp_path / "report.html"
    write_report_files([str(file)], {"pair": "p", "active": "west", "newest": report()})
    assert "<h1" in file.read_text()

    with pytest.raises(FailedError, match="never switched over"):
        write_report_files([str(file)], {"pair": "p", "active": None, "newest": None})


def test_a_failed_write_keeps_the_earlier_report(tmp_path: Path):
    file = tmp_path / "report.json"
    file.write_text("earlier")
    with pytest.raises(TypeError):
        write_report_files([str(file)], {"unknown": object()})

    assert "earlier" == file.read_text()
    assert [file] == [*tmp_path.iterdir()]


class ClosedTerminal(io.StringIO):
    """The stdout of a process whose terminal was closed."""

    def write(self, _: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("is_json", [False, True])
def test_a_closed_terminal_leaves_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_json: bool
):
    file = tmp_path / "report.json"
    monkeypatch.setattr(sys, "stdout", ClosedTerminal())
    with pytest.raises(OSError, match="Input/output error"):
        write_result(Namespace(json=is_json, report_files=[str(file)]), report(), ["It was rolled back."])

    assert json.loads(file.read_text()) == report()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("report.pdf", "ends neither in .json nor in .html"),
        ("report", "ends neither in .json nor in .html"),
        ("missing/report.json", "cannot be written"),
    ],
)
def test_a_file_that_cannot_become_a_report_is_refused(tmp_path: Path, name: str, reason: str):
    with pytest.raises(UsageError, match=reason):
        check_report_files([str(tmp_path / name)])


def test_a_check_that_the_pair_does_not_require_is_reported_as_unknown():
    rows = {row["check"]: row for row in report()["checks"]}

    assert (None, "orders requires none.") == (rows["verification"]["passed"], rows["verification"]["why"])
    assert (True, False) == (rows["lag"]["passed"], rows["endpoint"]["passed"])
