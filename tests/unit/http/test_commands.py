"""Requests that change something in Connect's REST API become commands or are refused."""

import json

import pytest

from mirrorflow_core.connect.worker_records import TargetState
from mirrorflow_replicator.http.commands import (
    AlterOffsets,
    Configure,
    Delete,
    ListOffsets,
    Patch,
    ResetOffsets,
    Restart,
    RestartTask,
    SetLevel,
    SetTarget,
)
from mirrorflow_replicator.http.rest import CHANGES_MISSING, respond
from mirrorflow_replicator.http.worker_view import Request, Response
from tests.unit.http.reports import content, view

NULL = (
    "Connector configuration is invalid and contains the following 1 error(s):\n"
    "{}: a property cannot be null; leave it out, or give it a value.\n"
    "You can also find the above list of errors at the endpoint `/connector-plugins/{{connectorType}}/config/validate`"
)


def send(method, path, body=None, *, content_type="application/json", **state):
    path, _, query = path.partition("?")
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = Request(method=method, path=path, query=query, body=data, content_type=content_type)
    return respond(request, view(**{"modify_enabled": True, "takes_changes": True} | state))


def refusal(response):
    assert isinstance(response, Response)
    return response.status, json.loads(content(response))["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        (
            "POST",
            "/connectors",
            {"name": " a ", "config": {"x": 1, "name": None}},
            Configure(name="a", properties={"x": "1", "name": "a"}, may_exist=False),
        ),
        (
            "POST",
            "/connectors",
            {"name": "a", "config": {"name": "a"}, "initial_state": "stopped"},
            Configure(name="a", properties={"name": "a"}, target=TargetState.STOPPED, may_exist=False),
        ),
        (
            "PUT",
            "/connectors/A-%3EB/config",
            {"x": "${env:X}"},
            Configure(name="A->B", properties={"x": "${env:X}", "name": "A->B"}, may_exist=True),
        ),
        (
            "PATCH",
            "/connectors/a/config",
            {"x": None, "y": True},
            Patch(name="a", changes={"x": None, "y": "true", "name": "a"}),
        ),
        ("DELETE", "/connectors/a", None, Delete(name="a")),
        ("PUT", "/connectors/a/pause", None, SetTarget(name="a", target=TargetState.PAUSED)),
        ("PUT", "/connectors/a/resume", None, SetTarget(name="a", target=TargetState.STARTED)),
        ("PUT", "/connectors/a/stop", None, SetTarget(name="a", target=TargetState.STOPPED)),
        ("POST", "/connectors/a/restart", None, Restart(name="a")),
        (
            "POST",
            "/connectors/a/restart?onlyFailed=TRUE&includeTasks=no",
            None,
            Restart(name="a", only_failed=True),
        ),
        ("POST", "/connectors/a/tasks/12/restart", None, RestartTask(name="a", task=12)),
        ("GET", "/connectors/a/offsets", None, ListOffsets(name="a")),
        (
            "PATCH",
            "/connectors/a/offsets",
            {"offsets": [{"partition": {"p": 0}, "offset": {"offset": 1}}, {"partition": {"p": 1}}]},
            AlterOffsets(name="a", offsets=(({"p": 0}, {"offset": 1}), ({"p": 1}, None))),
        ),
        ("DELETE", "/connectors/a/offsets", None, ResetOffsets(name="a")),
        (
            "PUT",
            "/admin/loggers/a.b",
            {"level": "warn"},
            SetLevel(name="a.b", level="WARN", everywhere=False),
        ),
        (
            "PUT",
            "/admin/loggers/root?scope=CLUSTER",
            {"level": "TRACE"},
            SetLevel(name="root", level="TRACE", everywhere=True),
        ),
    ],
)
def test_each_request_that_changes_something_is_a_command(method, path, body, expected):
    """Paths, defaults and accepted JSON are those of Connect."""
    assert expected == send(method, path, body)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("PUT", "/connectors/a/config", {"name": "b"}, 400, "Connector name configuration (b) doesn't match connector name in the URL (a)"),
        ("POST", "/connectors", {"name": "a"}, 400, "config is missing; send an object of the connector's properties."),
        ("POST", "/connectors", {"name": 1, "config": {}}, 400, "The connector's name is not a string."),
        ("POST", "/connectors", {"config": {}, "initial_state": "ASLEEP"}, 400, "initial_state must be RUNNING, PAUSED or STOPPED."),
        ("POST", "/connectors", {"config": {}, "other": 1}, 400, "The body has fields that a connector is not created with: other."),
        ("PUT", "/connectors/a/config", {"x": {}}, 400, "A property is an object or a list; send each property as a string."),
        ("PUT", "/connectors/a/config", [], 400, "The body is not a JSON object; send the connector's properties as strings by name."),
        ("PUT", "/connectors/a/config", b"{", 400, "The body is not JSON; send an object of the connector's properties."),
        ("PATCH", "/connectors/a/offsets", {"offsets": []}, 400, "Partitions / offsets need to be provided for an alter offsets request"),
        ("PATCH", "/connectors/a/offsets", {}, 400, "Partitions / offsets need to be provided for an alter offsets request"),
        ("PATCH", "/connectors/a/offsets", {"offsets": 1}, 400, "The body is not an object with a list of offsets."),
        ("PATCH", "/connectors/a/offsets", {"offsets": [{"partition": 1}]}, 400, "The partition or the offset of an entry is not an object."),
        ("POST", "/connectors/a/tasks/x/restart", None, 404, "HTTP 404 Not Found"),
        ("PUT", "/connectors/a/config", {"x": None}, 400, NULL.format("x")),
        ("POST", "/connectors", {"name": "a", "config": {"topics.exclude": None}}, 400, NULL.format("topics.exclude")),
        ("POST", "/connectors/a/tasks", [], 400, "Internal request missing required signature"),
        ("PUT", "/connectors/a/fence", None, 400, "Internal request missing required signature"),
        ("PUT", "/admin/loggers/a", {"level": "loud"}, 404, "invalid log level 'loud'."),
        ("PUT", "/admin/loggers/a", {}, 400, "Desired 'level' parameter was not specified in request."),
        ("DELETE", "/admin/loggers/a", None, 405, "HTTP 405 Method Not Allowed"),
        ("DELETE", "/connectors", None, 405, "HTTP 405 Method Not Allowed"),
        ("POST", "/connectors/a/stop", None, 405, "HTTP 405 Method Not Allowed"),
        ("PUT", "/nothing", None, 404, "HTTP 404 Not Found"),
    ],
)  # fmt: skip
def test_an_invalid_request_is_refused_as_in_connect(method, path, body, status, message):
    assert (status, message) == refusal(send(method, path, body))


def test_other_media_types_are_refused():
    response = send("PUT", "/connectors/a/config", {}, content_type="text/plain")

    assert (415, "HTTP 415 Unsupported Media Type") == refusal(response)


def test_an_unneeded_body_that_is_not_json_is_refused():
    """Jersey refuses it too. The media type is ignored if there is no body."""
    assert 415 == refusal(send("PUT", "/connectors/a/stop", b"x", content_type="text/plain"))[0]
    assert isinstance(send("PUT", "/connectors/a/stop", content_type=""), SetTarget)


def test_a_reset_of_topics_is_accepted_without_effect():
    """The listed topics are being copied. In Java, they would be listed again after the next record."""
    response = send("PUT", "/connectors/a/topics/reset")

    assert isinstance(response, Response)
    assert (202, b"") == (response.status, response.body)


def test_connectors_from_files_cannot_be_changed():
    """rest.modify.enable is not sufficient, because the worker must be distributed. Offsets can be read."""
    assert (501, CHANGES_MISSING) == refusal(send("DELETE", "/connectors/a", takes_changes=False))
    assert isinstance(send("GET", "/connectors/a/offsets", takes_changes=False), Response)
    assert 403 == refusal(send("DELETE", "/connectors/a", modify_enabled=False))[0]
