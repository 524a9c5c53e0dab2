"""The source of a pair is killed with records that were not copied: the reported loss, and what runs on the target."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorflow_cli.run_progress import read_progress
from tests.harness.kafka.processes import wait_until
from tests.integration.kafka.groups import group_offsets
from tests.integration.kafka.lost_sources import COPIED, LOST, READ, lost_source, write
from tests.integration.kafka.mirror_pairs import Sides, all_numbers, pair_sides, read

NEW = 20


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    """As for a planned switchover; the first cluster is killed."""
    with pair_sides() as clusters:
        yield clusters


@pytest.mark.faults
def test_an_unplanned_switchover_reports_the_loss_and_its_flow_writes_nothing_more(
    sides: Sides, tmp_path: Path
):
    """The target refuses the records that were never copied. Afterwards the source returns with them."""
    east, west = sides["east"], sides["west"]
    report = tmp_path / "report.json"
    with lost_source(sides, tmp_path) as lost:
        pair, flow, url = lost.pair, lost.flow, lost.url
        shown = pair.command("--to", "west", "--unplanned", "--progress", url, "--report", report)
        assert 1 == shown.returncode, shown.stdout + shown.stderr
        loss = json.loads(report.read_text())["loss"]["lostOffsetsAtLeast"]
        assert 0 < loss <= COPIED + LOST - west.total_end_offset(pair.topic)
        assert f"acceptLoss: At least {loss} offsets of 1 partition are lost" in shown.stdout
        assert ("east", COPIED) == (pair.endpoint.read_text(), west.total_end_offset(pair.topic))

        moved = pair.command(
            "--to", "west", "--unplanned", "--accept-loss", "--progress", url, "--report", report
        )
        assert 0 == moved.returncode, moved.stdout + moved.stderr + flow.output()
        result = json.loads(report.read_text())
        (partition,) = (row for row in result["loss"]["partitions"] if row["topic"] == pair.topic)
        assert ("Degraded", "west") == (result["state"], pair.endpoint.read_text())
        assert (COPIED, LOST) == (partition["copiedUpTo"], partition["lostOffsetsAtLeast"])
        assert group_offsets(west, pair.group)[pair.topic, 0] <= READ
        crossed = all_numbers(pair, "west")
        write(pair, "west", range(1_000, 1_000 + NEW))
        numbers = read(pair, "west", lambda number: number == 1_000 + NEW - 1)

        east.broker(1).start()
        wait_until("the flow's process reaches the source again", lambda: reaches_source(url))
        refused = pair.command("--to", "east")
        assert crossed == [*range(COPIED)]
        assert all_numbers(pair, "west") == [*crossed, *range(1_000, 1_000 + NEW)]
    assert 1 == refused.returncode, refused.stdout + refused.stderr
    assert "reconcile east first" in refused.stdout
    assert numbers[-NEW:] == [*range(1_000, 1_000 + NEW)]
    assert {*range(READ, COPIED)} <= {*numbers}

    kept = pair.command("keep", "--left", "east", name="diverged")
    assert f"{LOST} records are kept in {pair.topic}.diverged." in kept.stdout, kept.stdout + kept.stderr
    started = pair.command("start-back", "--left", "east", name="diverged")
    assert 0 == started.returncode, started.stdout + started.stderr
    with pair.running("west-to-east", "back") as back:
        wait_until("the reverse flow runs", lambda: east.total_end_offset(pair.topic) >= COPIED + LOST + NEW)
        with pair.running("east-to-west", "forward-again") as forward:
            returned = pair.command("--to", "east")
        assert 0 == returned.returncode, returned.stdout + returned.stderr + back.output() + forward.output()
    assert "east" == pair.endpoint.read_text()
    assert all_numbers(pair, "east") == [*range(COPIED + LOST), *range(1_000, 1_000 + NEW)]


def reaches_source(url: str) -> bool:
    """Returns whether the process at *url* reaches its source: one of its other connectors does."""
    progress = read_progress(url)
    companions = () if progress is None else progress.companions
    return any(row.received.get("source", {}).get("reach") == "Reachable" for row in companions)
