"""Fences of hooks: the cluster that they fence, and their state after a lost cluster, a crash and an edited pair."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_core.errors import ClusterError, UnreachableError
from mirrorflow_core.switchover.observation import FenceState
from mirrorflow_core.switchover.record import SwitchoverLimits, SwitchoverRecord
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from mirrorflow_core.topics.topic_acls import AclBinding
from mirrorflow_kafka.admin import admin
from mirrorflow_replicator.switchover.acl_fence import AclFence, ListedAcls, fence_acls
from mirrorflow_replicator.switchover.errors import FenceUnavailableError
from mirrorflow_replicator.switchover.hooks import HookSettings
from mirrorflow_replicator.switchover.journal import ClusterJournal, SwitchoverJournal
from mirrorflow_replicator.switchover.observer import PlannedObserver, PlannedParts
from mirrorflow_replicator.switchover.pair_settings import FenceKind, SwitchoverSettings
from mirrorflow_replicator.switchover.session import ReadableJournal, require_same_method
from mirrorflow_replicator.switchover.write_fences import DenyAclFence, NotedFence


class Copy:
    """The journal on one cluster, which may be lost."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.notes: dict[str, dict[str, Any]] = {}
        self.records: dict[str, SwitchoverRecord] = {}
        self.is_lost = False

    async def write_note(self, name: str, value: dict[str, Any]) -> None:
        if self.is_lost:
            raise UnreachableError(cluster=self.alias, addresses=self.alias, problem="no response")
        self.notes[name] = value

    async def read(self) -> None:
        pass


class Aliases:
    alias = "west"
    source_alias, target_alias = "west", "east"


def journal() -> tuple[SwitchoverJournal, Copy, Copy]:
    east, west = Copy("east"), Copy("west")
    return SwitchoverJournal(cast("list[ClusterJournal]", [east, west])), east, west


def hook(folder: Path) -> HookSettings:
    """A hook that keeps for each cluster the action that was done last; a cluster is a file."""
    code = "import os, sys; e = os.environ; open(os.path.join(sys.argv[1], e['MIRRORFLOW_MEMBER']), 'w').write(e['MIRRORFLOW_ACTION'])"
    return HookSettings((sys.executable, "-c", code, str(folder)), 60)


def settings(fence: FenceKind) -> SwitchoverSettings:
    """From west to east: the way back."""
    flow = cast("Any", Aliases)
    return SwitchoverSettings(
        pair="p", forward=flow, forward_groups=None, back=flow, fence=fence, limits=SwitchoverLimits()
    )


def test_the_environment_of_a_fence_hook_names_its_cluster(tmp_path: Path):
    """In a switchover back, promotion lifts the fence of the target, and a rollback that of the source:
    action, FROM and TO are the same.
    """
    notes, _, _ = journal()
    variables = settings(FenceKind.HOOK).variables
    east, west = (
        NotedFence(name, notes, hook=hook(tmp_path), variables=variables) for name in ("east", "west")
    )

    asyncio.run(west.set(()))
    asyncio.run(east.lift())

    assert ("fence", "lift") == ((tmp_path / "west").read_text(), (tmp_path / "east").read_text())


@pytest.mark.parametrize("lost", ["east", "west"])
def test_a_fence_is_lifted_although_the_other_cluster_is_lost(tmp_path: Path, lost: str):
    notes, *copies = journal()
    (left,) = {"east", "west"} - {lost}
    fence = NotedFence(left, notes, hook=hook(tmp_path), variables={})
    asyncio.run(fence.set(()))
    next(copy for copy in copies if copy.alias == lost).is_lost = True

    with pytest.raises(UnreachableError):
        asyncio.run(fence.lift())

    assert "lift" == (tmp_path / left).read_text()
    assert FenceState.PARTIAL is notes.fence_of(left).state


def test_the_endpoint_is_noted_although_one_cluster_is_lost():
    notes, east, _ = journal()
    east.is_lost = True

    with pytest.raises(UnreachableError):
        asyncio.run(notes.write_endpoint("west"))

    assert "west" == notes.active


def fenced_by_hook(
    tmp_path: Path,
) -> tuple[PlannedObserver, SwitchoverRecord, dict[str, NotedFence], "Flows"]:
    """Returns an observer, and a record in FENCING whose hook fence was noted by an earlier process."""
    notes, _, _ = journal()
    flows = Flows()
    asyncio.run(notes.write_fence("west", FenceState.COMPLETE, method=FenceKind.HOOK))
    fences = {name: NotedFence(name, notes, hook=hook(tmp_path), variables={}) for name in ("east", "west")}
    parts = PlannedParts(
        settings=settings(FenceKind.HOOK),
        clusters=cast("Any", SimpleNamespace(source=None)),
        journal=notes,
        fences=fences,
        flows=cast("Any", flows),
        checks=cast("Any", None),
        partitions=cast("Any", Partitions()),
    )
    observer = PlannedObserver(parts, runner="host/1/b")
    record = SwitchoverRecord(
        id="one",
        pair="p",
        type=SwitchoverType.PLANNED,
        source="west",
        to="east",
        created_ms=0,
        state=SwitchoverState.FENCING,
    )
    return observer, record, fences, flows


def test_a_hook_fence_noted_by_an_earlier_process_is_set_again(tmp_path: Path):
    """Only the note shows a hook's fence. After a crash, a user may have lifted it by hand."""
    observer, record, fences, _ = fenced_by_hook(tmp_path)

    assert FenceState.PARTIAL is asyncio.run(observer.observe(record)).source.fence
    asyncio.run(fences["west"].set(()))
    assert FenceState.COMPLETE is asyncio.run(observer.observe(record)).source.fence


def test_the_reverse_flow_is_read_before_anything_else(tmp_path: Path):
    """Its reading may take seconds. What was read before would be as old when the state machine decides on it."""
    observer, record, _, flows = fenced_by_hook(tmp_path)

    asyncio.run(observer.observe(record))

    assert ["reverse", "end"] == flows.read


class Partitions:
    """Those of a cluster that does not respond."""

    async def on_source(self) -> None:
        raise ClusterError("no response", cluster="west")


class Flows:
    verification = None

    def __init__(self) -> None:
        self.read: list[str] = []

    async def end_state(self) -> None:
        self.read.append("end")

    async def reverse(self, **_: object) -> None:
        await asyncio.sleep(0)
        self.read.append("reverse")


@pytest.mark.parametrize(
    ("noted", "now"),
    [
        (FenceKind.DENY_ACL, FenceKind.HOOK),
        (FenceKind.DENY_ACL, FenceKind.NONE),
        (FenceKind.HOOK, FenceKind.DENY_ACL),
        (FenceKind.HOOK, FenceKind.NONE),
    ],
    ids=lambda kind: kind.value,
)
def test_a_changed_method_is_refused_until_the_earlier_fence_is_lifted(noted: FenceKind, now: FenceKind):
    notes, _, _ = journal()
    acls = fence_acls(["orders"], (), except_principals=()) if noted is FenceKind.DENY_ACL else ()
    asyncio.run(notes.write_fence("east", FenceState.PARTIAL, method=noted, acls=acls))

    with pytest.raises(FenceUnavailableError, match=rf"method {noted.value}, which .* spec\.fence"):
        require_same_method(settings(now), notes)
    require_same_method(settings(noted), notes)
    asyncio.run(notes.write_fence("east", FenceState.ABSENT, method=noted))
    require_same_method(settings(now), notes)


def test_any_method_is_accepted_after_the_method_none():
    notes, _, _ = journal()
    asyncio.run(notes.write_fence("east", FenceState.COMPLETE, method=FenceKind.NONE))

    for kind in FenceKind:
        require_same_method(settings(kind), notes)


def test_an_acl_fence_is_complete_once_the_brokers_list_its_acls(
    monkeypatch: pytest.MonkeyPatch,
):
    """The note is written before the ACLs are created, so it only lists ACLs that may exist."""
    acls = fence_acls(["orders"], (), except_principals=())

    async def listed(_: AclFence, noted: frozenset[AclBinding]) -> ListedAcls:
        return ListedAcls(by_any=noted, by_all=noted)

    monkeypatch.setattr(AclFence, "listed", listed)
    notes, _, _ = journal()
    asyncio.run(notes.write_fence("east", FenceState.PARTIAL, method=FenceKind.DENY_ACL, acls=acls))
    read = ReadableJournal(
        journal=notes,
        clusters={"east": cast("Any", SimpleNamespace(alias="east"))},
        problems={"west": "no response"},
    )
    now = settings(FenceKind.DENY_ACL)

    assert FenceState.COMPLETE is asyncio.run(read.fence_state(now, "east"))
    assert FenceState.ABSENT is asyncio.run(read.fence_state(now, "west"))
    lost = ReadableJournal(journal=notes, clusters={}, problems={})
    assert asyncio.run(lost.fence_state(now, "east")) is None


def test_a_topic_created_after_a_fence_is_reported(monkeypatch: pytest.MonkeyPatch):
    """Its writers may not be refused, so the fence is not complete: neither when it is sealed, nor after promoting."""
    existing: list[AclBinding] = []

    async def describe_acls(*_: Any, **__: Any) -> tuple[AclBinding, ...]:
        return tuple(existing)

    async def create(_: AclFence, acls: Any) -> None:
        existing.extend(acls)

    monkeypatch.setattr(admin, "describe_acls", describe_acls)
    monkeypatch.setattr(AclFence, "create", create)
    notes, _, _ = journal()
    fence = DenyAclFence(cast("Any", Aliases), notes, except_principals=())
    asyncio.run(fence.set({"orders"}))

    assert not asyncio.run(fence.uncovered({"orders"}))
    assert {"new"} == asyncio.run(fence.uncovered({"orders", "new"}))
    asyncio.run(fence.set({"orders", "new"}))
    assert not asyncio.run(fence.uncovered({"orders", "new"}))
