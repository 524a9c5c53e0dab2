"""The newest verification of a flow, from a folder of results, is a problem if it found differences."""

import json
import os
from pathlib import Path

from mirrorflow_console.documents import FlowReading
from mirrorflow_console.flow_views import Level, SubjectKind, flow_view
from mirrorflow_console.result_files import ResultFiles
from mirrorflow_console.verified_flows import VerifiedFlows
from tests.unit.console.flow_readings import FixedFlows, healthy, reading
from tests.unit.console.test_job_views import RESULT
from tests.unit.http.reports import partition

NOTHING: frozenset[str] = frozenset()


def write_result(folder: Path, run: str, at_s: int, *, different: int) -> None:
    """Writes the result of *run*, changed at *at_s*."""
    windows = {**RESULT["windows"], "different": different}
    file = folder / run / "verification.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({**RESULT, "runId": run, "windows": windows, "message": f"Run {run}."}))
    os.utime(file, (at_s, at_s))


def read(source: VerifiedFlows) -> FlowReading:
    (verified,) = source.read(NOTHING, NOTHING, is_watched=True)
    return verified


def test_differences_are_a_problem_until_a_newer_verification_finds_none(tmp_path: Path):
    source = VerifiedFlows(FixedFlows([reading(healthy(partition(0)))]), ResultFiles(tmp_path))
    assert flow_view(read(source)).troubles == ()

    write_result(tmp_path, "1", 1_000, different=2)
    view = flow_view(read(source))
    (trouble,) = view.troubles
    assert (view.level, trouble.kind, trouble.subject) == (Level.BROKEN, SubjectKind.VERIFICATION, "1")
    assert (trouble.reason, trouble.text) == ("DifferencesFound", "Run 1.")

    write_result(tmp_path, "2", 2_000, different=0)
    assert flow_view(read(source)).troubles == ()


def test_a_result_is_shown_only_for_the_flow_that_it_names(tmp_path: Path):
    write_result(tmp_path, "1", 1_000, different=2)
    flows = FixedFlows([reading(healthy(partition(0)), name="other")])

    assert read(VerifiedFlows(flows, ResultFiles(tmp_path))).verification is None


def test_a_result_is_of_no_flow_of_a_context_whose_name_another_flow_has(tmp_path: Path):
    """It is of the flow of this machine, or of the only one with its name."""
    write_result(tmp_path, "1", 1_000, different=2)
    local, east, west = (
        reading(healthy(partition(0)), key=f"{namespace}~east-to-west", namespace=namespace)
        for namespace in ("", "east kafka", "west kafka")
    )

    def verified(*flows: FlowReading) -> list[str]:
        readings = VerifiedFlows(FixedFlows(flows), ResultFiles(tmp_path)).read(
            NOTHING, NOTHING, is_watched=True
        )
        return [flow.namespace for flow in readings if flow.verification is not None]

    assert verified(east) == ["east kafka"]
    assert verified(east, west) == []
    assert verified(local, east, west) == [""]


def test_a_reading_is_reused_until_the_result_changes(tmp_path: Path):
    write_result(tmp_path, "1", 1_000, different=0)
    source = VerifiedFlows(FixedFlows([reading(healthy(partition(0)))]), ResultFiles(tmp_path))
    first = read(source)

    assert read(source) is first
    write_result(tmp_path, "1", 2_000, different=1)
    assert read(source) is not first
