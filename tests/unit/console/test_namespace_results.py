"""Results of verifications in a cluster: each is shown to those who may see its flow, and keys to those who may see keys.

Tenants of the cluster can write anything to a volume of results.
"""

import json
import os
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_console import result_files
from mirrorflow_console.__main__ import main
from mirrorflow_console.gate import Visitor
from mirrorflow_console.job_views import JobView, job_views, verification_of_file, with_results
from mirrorflow_console.namespace_results import RESULTS_MAX_BYTES, NamespaceResults
from mirrorflow_console.result_files import ResultFiles, open_below
from tests.harness.kafka.processes import wait_until
from tests.unit.console.flow_readings import FixedFlows, healthy, reading
from tests.unit.console.served_console import served
from tests.unit.console.test_job_views import RESULT, with_keys
from tests.unit.console.test_server import get
from tests.unit.http.reports import partition

KEY = "order-17"
MINE, THEIRS = "mine", "theirs"
VERIFIED: dict[str, Any] = {"verify": {**RESULT, "startTime": "2026-11-29T10:00:00Z"}}


def write_result(folder: Path, document: Any, *, run: str = "run-nightly") -> Path:
    """Writes a result as the driver of the flow east-to-west does."""
    file = folder / "east-to-west" / run / "verification.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(document))
    return file


def read_when(
    results: NamespaceResults, is_complete: Callable[[list[JobView]], bool] = bool
) -> list[JobView]:
    """Returns the results once they fulfil a condition."""
    return wait_until("the results are read", lambda: views if is_complete(views := results.read()) else [])


def results_of(tmp_path: Path) -> NamespaceResults:
    """The results of both namespaces, which have a folder each."""
    for namespace in (MINE, THEIRS):
        (tmp_path / namespace).mkdir(exist_ok=True)
    return NamespaceResults({name: tmp_path / name for name in (MINE, THEIRS)}, rest_s=0.05)


def flows() -> FixedFlows:
    """A flow of the same name in both namespaces, whose last verification has views differences."""
    return FixedFlows(
        [
            reading(
                healthy(partition(0)),
                key=f"{namespace}~east-to-west",
                namespace=namespace,
                status=VERIFIED,
            )
            for namespace in (MINE, THEIRS)
        ]
    )


class GateByName:
    """Recognises the visitor whose name a request has as its agent."""

    def __init__(self, *visitors: Visitor) -> None:
        self._visitors = {visitor.name: visitor for visitor in visitors}

    async def visitor(self, request: Any, _: Any) -> Visitor | None:
        return self._visitors.get(request.headers["user-agent"])


def visitor(name: str, *, flows_of: AbstractSet[str], keys_of: AbstractSet[str] = frozenset()) -> Visitor:
    return Visitor(name=name, namespaces=frozenset(flows_of), key_namespaces=frozenset(keys_of))


def jobs_page(console: Any, name: str) -> str:
    return get(console, "/jobs", **{"User-Agent": name})[2]


def test_a_result_opens_the_verification_of_the_flow_in_its_namespace(tmp_path: Path):
    """The flow of the same name in a different namespace has no windows, and the result is not listed a second time."""
    write_result(tmp_path / THEIRS, with_keys(KEY))
    views = read_when(results_of(tmp_path))

    jobs = with_results(job_views(flows().readings), views)

    assert {job.namespace: len(job.windows) for job in jobs} == {MINE: 0, THEIRS: 1}


def test_results_of_other_runs_are_listed_besides(tmp_path: Path):
    write_result(tmp_path / MINE, {**RESULT, "runId": "earlier"})
    views = read_when(results_of(tmp_path))

    jobs = with_results(job_views(flows().readings), views)

    assert sorted((job.namespace, job.run_id, len(job.windows)) for job in jobs) == [
        (MINE, "earlier", 1),
        (MINE, "nightly", 0),
        (THEIRS, "nightly", 0),
    ]


def test_a_visitor_sees_only_results_of_namespaces_whose_flows_they_may_see(tmp_path: Path):
    """Also with the right to see keys there, and a result of a deleted flow."""
    write_result(tmp_path / THEIRS, with_keys(KEY))
    write_result(tmp_path / THEIRS, {**with_keys(KEY), "flow": "gone", "runId": "9"}, run="run-9")
    gate = GateByName(visitor("ada", flows_of={MINE}, keys_of={MINE, THEIRS}))
    results = results_of(tmp_path)
    read_when(results, lambda views: len(views) == 2)

    with served(flows(), gate=gate, results=results) as console:
        body = jobs_page(console, "ada")

    assert "Verification of" in body
    assert all(text not in body for text in (KEY, "orders-3", "gone", THEIRS))


def test_keys_are_shown_only_to_those_who_may_see_them_in_that_namespace(tmp_path: Path):
    """A page that was rendered for one visitor is not sent to another."""
    write_result(tmp_path / MINE, with_keys(KEY))
    gate = GateByName(
        visitor("with", flows_of={MINE}, keys_of={MINE}),
        visitor("without", flows_of={MINE}),
        visitor("elsewhere", flows_of={MINE, THEIRS}, keys_of={THEIRS}),
    )
    results = results_of(tmp_path)
    read_when(results)

    with served(flows(), gate=gate, results=results) as console:
        pages = [jobs_page(console, name) for name in ("with", "without", "elsewhere", "with")]

    assert [KEY in body for body in pages] == [True, False, False, True]
    assert all("orders-3" in body and "value, headers" in body for body in pages)


def test_a_visitor_may_see_no_key_by_default():
    result = verification_of_file(with_keys(KEY))
    assert result is not None

    (shown,) = Visitor(name="ada").visible_results([result])

    assert [row.key for row in shown.windows[0].differences] == [None]


@pytest.mark.parametrize("linked", ["file", "run", "flow"])
def test_a_link_to_the_results_of_a_different_namespace_is_not_followed(tmp_path: Path, linked: str):
    """All volumes are mounted in the console's pod, so a link in one could name a file of another."""
    foreign = write_result(tmp_path / THEIRS, with_keys(KEY))
    link = tmp_path / MINE / foreign.relative_to(tmp_path / THEIRS)
    target = foreign
    for _ in range(["file", "run", "flow"].index(linked)):
        link, target = link.parent, target.parent
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)

    results = results_of(tmp_path)

    assert [result.namespace for result in read_when(results)] == [THEIRS]


def test_a_folder_that_becomes_a_link_after_it_was_listed_is_not_followed(tmp_path: Path):
    foreign = write_result(tmp_path / THEIRS, with_keys(KEY))
    (tmp_path / MINE).mkdir()
    (tmp_path / MINE / "east-to-west").symlink_to(tmp_path / THEIRS / "east-to-west")

    with pytest.raises(OSError, match="east-to-west"):
        open_below(tmp_path / MINE, tmp_path / MINE / foreign.relative_to(tmp_path / THEIRS))


def test_pipes_and_files_that_are_too_long_hide_no_other_result(tmp_path: Path):
    """A pipe would block the reader, and a long file fill its memory."""
    write_result(tmp_path / MINE, RESULT)
    pipe = tmp_path / MINE / "pipe" / "verification.json"
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    long = write_result(tmp_path / MINE, {}, run="run-long")
    os.truncate(long, RESULTS_MAX_BYTES + 1)

    assert [result.run_id for result in read_when(results_of(tmp_path))] == ["nightly"]


@pytest.mark.parametrize("count", [10**4_299, 1 << 63], ids=["long", "beyond-64-bits"])
def test_a_page_shows_results_with_numbers_that_no_verification_has(tmp_path: Path, count: int):
    """Python refuses to write a number of more than 4,300 digits, such as the sum of these."""
    counts = dict.fromkeys(("total", "equal", "different", "undecided"), count)
    (window,) = RESULT["notEqual"]
    windows = [{**window, "fromOffset": count, "first": [{**window["first"][0], "sourceOffset": count}]}]
    write_result(
        tmp_path / MINE,
        {**RESULT, "runId": "7", "windows": counts, "differences": count, "notEqual": windows},
    )
    results = results_of(tmp_path)
    read_when(results)

    with served(flows(), results=results) as console:
        status, _, body = get(console, "/jobs")

    assert status == 200
    assert "run 7" in body


def test_a_result_is_shown_once_its_file_is_complete(tmp_path: Path):
    file = write_result(tmp_path / MINE, {})
    results = results_of(tmp_path)
    assert results.read() == []

    file.write_text(json.dumps({**RESULT, "runId": "8"}))

    assert [result.run_id for result in read_when(results)] == ["8"]


def test_an_invalid_setting_of_results_ends_the_console_at_its_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    (tmp_path / "kubeconfig").write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("MIRRORFLOW_RESULTS", "kafka")

    assert main() == 2
    assert "MIRRORFLOW_RESULTS is kafka; write it as kafka=/mnt/kafka." in capsys.readouterr().err


def test_a_folder_with_any_number_of_entries_is_read_only_in_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """A tenant can create millions of files; each entry that is read takes memory of the console."""
    monkeypatch.setattr(result_files, "ENTRIES_MAX", 10)
    read: list[str] = []

    class Entry:
        def __init__(self, name: str) -> None:
            read.append(name)
            self.name = name
            self.path = str(tmp_path / name)

        def is_dir(self, **_: bool) -> bool:
            return False

    @contextmanager
    def scandir(_: Path) -> Iterator[Iterator[Entry]]:
        yield (Entry(str(number)) for number in range(1_000))

    monkeypatch.setattr("mirrorflow_console.result_files.os.scandir", scandir)

    assert ResultFiles(tmp_path).read() == []
    assert len(read) <= 10
