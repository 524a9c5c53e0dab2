"""Tests which groups are archived, and that a permission that is missing is a sentence and loses no earlier offset."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.topics.topic_acls import TOPIC, AclBinding
from mirrorflow_core.wire.error_codes import CLUSTER_AUTHORIZATION_FAILED, SECURITY_DISABLED
from mirrorflow_seed.archive.archive_source import ArchiveCluster
from mirrorflow_seed.archive.manifest import ArchivedGroup, ArchivedOffset
from mirrorflow_seed.archive.source_metadata import (
    SourceGroups,
    group_selection,
    read_acls,
    read_groups,
)
from tests.unit.seed.archive.test_archive_source import manifest

ACL = AclBinding(
    resource_type=TOPIC,
    resource_name="orders",
    pattern_type=3,
    principal="User:alice",
    host="*",
    operation=3,
    permission_type=3,
)


TOPICS = {"orders"}


def group(name: str, offset: int, *topics: str) -> ArchivedGroup:
    return ArchivedGroup(
        name=name,
        offsets=tuple(
            ArchivedOffset(topic=topic, partition=1, offset=offset) for topic in topics or ("orders",)
        ),
    )


def test_groups_are_selected_by_name_and_can_be_disabled() -> None:
    selection = group_selection({})
    assert selection is not None
    assert (selection.selects("billing"), selection.selects("console-consumer-7")) == (True, False)
    narrow = group_selection({"archive.groups": "b.*, c", "archive.groups.exclude": "bad"})
    assert narrow is not None
    assert [name for name in ("billing", "bad", "c", "d") if narrow.selects(name)] == ["billing", "c"]
    assert group_selection({"archive.groups": ""}) is None
    with pytest.raises(InvalidSettingError):
        group_selection({"archive.groups": "("})


def test_a_group_that_cannot_be_read_keeps_its_earlier_offset_and_a_deleted_one_does_not() -> None:
    earlier = (group("failed", 1), group("gone", 2), group("read", 3))
    now = SourceGroups(groups=(group("read", 30),), read_ms=5, unread=frozenset({"failed"}))

    assert now.with_earlier(earlier, TOPICS) == (group("failed", 1), group("read", 30))
    partial = replace(now, unread=frozenset(), is_complete=False)
    assert partial.with_earlier(earlier, TOPICS) == (group("failed", 1), group("gone", 2), group("read", 30))


def test_offsets_on_discontinued_topics_are_kept() -> None:
    """The archive keeps such a topic as it was before it was deleted or recreated, with the offsets of that time."""
    earlier = (group("both", 5, "again", "orders"), group("of-deleted", 7, "deleted"))
    now = SourceGroups(groups=(group("both", 90, "again", "orders"), group("new", 1, "again")), read_ms=5)

    [both, of_deleted] = now.with_earlier(earlier, TOPICS)

    assert [(offset.topic, offset.offset) for offset in both.offsets] == [("again", 5), ("orders", 90)]
    assert of_deleted == group("of-deleted", 7, "deleted")


class Source(ArchiveCluster):
    """An archive as a source cluster that responds to each request with an error code."""

    def __init__(self, error_code: int) -> None:
        super().__init__("east", replace(manifest(), acls=(ACL,)))
        self.error_code = error_code

    def respond(self, request: Any) -> Any:
        if not self.error_code:
            return super().respond(request)
        return SimpleNamespace(error_code=self.error_code, error_message=None, resources=(), groups=())


def test_missing_permission_to_list_groups_is_a_warning_and_keeps_the_archived_groups() -> None:
    selection = group_selection({})
    assert selection is not None

    read = asyncio.run(read_groups(Source(CLUSTER_AUTHORIZATION_FAILED), selection, {"orders"}))

    [warning] = read.warnings
    assert warning.startswith("Offsets of groups are not archived (archive.groups= stops trying): ")
    assert read.with_earlier((group("billing", 3),), TOPICS) == (group("billing", 3),)


def test_acls_are_read_and_kept_without_permission() -> None:
    assert asyncio.run(read_acls(Source(0))) == ((ACL,), None)
    assert asyncio.run(read_acls(Source(SECURITY_DISABLED))) == ((), None)

    acls, warning = asyncio.run(read_acls(Source(CLUSTER_AUTHORIZATION_FAILED)))

    assert acls is None
    assert warning is not None
    assert warning.startswith("Topic ACLs are not archived (sync.topic.acls.enabled=false stops trying): ")
    assert "Describe" in warning
