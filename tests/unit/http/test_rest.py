"""Read requests to Connect's REST API and their responses."""

import json

import pytest

from mirrorflow_replicator.http.rest import CHANGES_MISSING, CHANGES_REFUSED, respond
from mirrorflow_replicator.http.rest_plugins import plugin_keys
from mirrorflow_replicator.http.worker_view import Request, Response
from tests.unit.http.reports import connector, content, partition, task, view

NAME = "A->B.source"
PATH = "/connectors/A-%3EB.source"
CONNECTOR = connector(
    task(partition(0), partition(1, source_offset=0)), task(number=1, state="FAILED", trace="It broke.")
)
CONFIG = {"name": NAME, "topics": ".*"}
TASKS = [{"connector": NAME, "task": 0}, {"connector": NAME, "task": 1}]
INFO = {"name": NAME, "config": CONFIG, "tasks": TASKS, "type": "source"}
FAILED = {"id": 1, "state": "FAILED", "worker_id": "host:8083", "trace": "It broke."}
STATUS = {
    "name": NAME,
    "connector": {"state": "RUNNING", "worker_id": "host:8083"},
    "tasks": [{"id": 0, "state": "RUNNING", "worker_id": "host:8083"}, FAILED],
    "type": "source",
}

INVALID_PLUGIN = "Invalid plugin class Other. Valid types are sink, source, converter, header_converter, transformation, predicate."


def send(path, method="GET", body=b"", content_type="application/json", **state):
    path, _, query = path.partition("?")
    request = Request(method=method, path=path, query=query, body=body, content_type=content_type)
    response = respond(request, view(CONNECTOR, **state))
    assert isinstance(response, Response)
    return response.status, json.loads(content(response)) if response.body else None


def error(status, message):
    return status, {"error_code": status, "message": message}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/", {"version": "4.3.1-mirrorflow-1.2.3", "commit": "abc", "kafka_cluster_id": "cluster-b"}),
        ("/connectors", [NAME]),
        ("/connectors/", [NAME]),
        ("/connectors?expand=status", {NAME: {"status": STATUS}}),
        ("/connectors?expand=info&expand=status", {NAME: {"info": INFO, "status": STATUS}}),
        ("/connectors?expand=nothing", {NAME: {}}),
        (PATH, INFO),
        (PATH + "/config", CONFIG),
        (PATH + "/status", STATUS),
        (
            PATH + "/tasks",
            [{"id": {"connector": NAME, "task": n}, "config": {"task.id": str(n)}} for n in range(2)],
        ),
        (PATH + "/tasks/1/status", FAILED),
        (PATH + "/tasks-config", {NAME + "-0": {"task.id": "0"}, NAME + "-1": {"task.id": "1"}}),
        (PATH + "/topics", {NAME: {"topics": ["A.orders"]}}),
        ("/connectors/none/topics", {"none": {"topics": []}}),
        (
            PATH + "/offsets",
            {
                "offsets": [
                    {
                        "partition": {"cluster": "A", "partition": 0, "topic": "orders"},
                        "offset": {"offset": 89},
                    }
                ]
            },
        ),
        ("/admin/loggers", {"root": {"level": "INFO", "last_modified": None}}),
        ("/admin/loggers/ROOT", {"level": "INFO", "last_modified": None}),
        ("/connector-plugins/MirrorSource/config", [*plugin_keys()["MirrorSourceConnector"].values()]),
    ],
)
def test_each_read_request_has_the_response_of_connect(path, body):
    assert (200, body) == send(path)


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/connectors/none", 404, "Connector none not found"),
        ("/connectors/none/config", 404, "Connector none not found"),
        ("/connectors/none/status", 404, "No status found for connector none"),
        (PATH + "/tasks/7/status", 404, f"No status found for task {NAME}-7"),
        (PATH + "/tasks/x/status", 404, "HTTP 404 Not Found"),
        (PATH + "/tasks/" + "9" * 5000 + "/status", 404, f"No status found for task {NAME}-" + "9" * 5000),
        ("/nothing", 404, "HTTP 404 Not Found"),
        (PATH + "/restart", 405, "HTTP 405 Method Not Allowed"),
        ("/connectors/%ff", 400, "HTTP 400 Bad Request"),
        ("/connectors?" + "a=b&" * 100, 400, "HTTP 400 Bad Request"),
        ("/connector-plugins/Other/config", 400, INVALID_PLUGIN),
        ("/connectors/%zz", 400, "HTTP 400 Bad Request"),
        (PATH + "/fence", 405, "HTTP 405 Method Not Allowed"),
        ("/admin/loggers/none", 404, "Logger none not found."),
    ],
)
def test_errors_have_the_code_and_message_of_connect(path, status, message):
    assert error(status, message) == send(path)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "path", ["/connectors", PATH, PATH + "/config", PATH + "/pause", "/admin/loggers/root"]
)
def test_changes_are_refused_with_403_or_501(method, path):
    """With rest.modify.enable the status is 501 instead of 403."""
    assert error(403, CHANGES_REFUSED) == send(path, method)
    if not (method == "PUT" and path.startswith("/admin/")):  # every worker has loggers
        assert error(501, CHANGES_MISSING) == send(path, method, modify_enabled=True)


def test_options_lists_the_allowed_methods():
    """An unknown method is refused with 405."""

    def allowed(path, **state):
        response = respond(Request(method="OPTIONS", path=path), view(CONNECTOR, **state))
        assert isinstance(response, Response)
        return response.status, dict(response.headers).get("Allow")

    assert (200, "GET,HEAD,OPTIONS") == allowed("/connectors")
    assert (200, "GET,HEAD,OPTIONS,POST") == allowed("/connectors", modify_enabled=True, takes_changes=True)
    assert (200, "OPTIONS,PUT") == allowed("/connector-plugins/MirrorSource/config/validate")
    assert 404 == allowed("/nothing")[0]
    assert error(405, "HTTP 405 Method Not Allowed") == send("/connectors", "BREW")


def test_health_reports_whether_the_worker_has_started():
    """By KIP-1017, the status is 503 while the worker starts, and 200 afterwards."""
    assert ((response := send("/health"))[0], response[1]["status"]) == (503, "starting")
    assert ((response := send("/health", serving=True))[0], response[1]["status"]) == (200, "healthy")


@pytest.mark.parametrize(
    "path",
    ["/connectors", PATH, PATH + "/status", PATH + "/offsets", "/connectors/none", "/connectors?expand=info"],
)
def test_requests_for_connectors_are_503_until_the_config_topic_was_read(path: str):
    """GitOps tools would interpret an empty list or a 404 as deleted connectors."""
    assert error(503, "Worker is still starting up.") == send(path, has_connectors=False)


def test_requests_for_the_worker_are_served_before_its_connectors_are_read():
    assert [200, 200] == [send(path, has_connectors=False)[0] for path in ("/", "/connector-plugins")]


def test_plugins_are_the_connectors_of_mm2_and_that_of_schemas():
    status, plugins = send("/connector-plugins?connectorsOnly=true")

    assert status == 200
    package = "org.apache.kafka.connect.mirror."
    assert {
        package + f"Mirror{kind}Connector" for kind in ("Source", "Checkpoint", "Heartbeat", "Schema")
    } == {plugin["class"] for plugin in plugins}


def test_validation_reports_errors_by_key():
    """Validation is allowed on each worker. Unknown keys are left out, as in Java."""

    def validate(connector_class, properties):
        assert (connector_class, properties) == ("MirrorSourceConnector", {"tasks.max": "0", "x": "true"})
        return {"tasks.max": "tasks.max: 0 is too few."}

    path = "/connector-plugins/MirrorSourceConnector/config/validate"
    status, body = send(path, "PUT", b'{"tasks.max": 0, "x": true}', validate=validate)

    assert (status, body["error_count"]) == (200, 1)
    values = {
        entry["value"]["name"]: (entry["value"]["value"], entry["value"]["errors"])
        for entry in body["configs"]
    }
    assert {name: entry for name, entry in values.items() if entry[1]} == {
        "tasks.max": ("0", ["tasks.max: 0 is too few."])
    }
    assert values["topics"] == (".*", [])
    assert "x" not in values


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"a": {}}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"connector.class": "MirrorHeartbeatConnector"}', "application/json; charset=utf-8", 400),
        (b"{}", "text/plain", 415),
        (b"{}", "application/json", 200),
        (b'{"a": "\\ud800"}', "application/json", 200),
    ],
)
def test_validation_refuses_invalid_bodies(body, content_type, status):
    """Only an object of strings is accepted."""
    path = "/connector-plugins/MirrorSourceConnector/config/validate"

    assert status == send(path, "PUT", body, content_type)[0]
    assert send(path, "POST", body, content_type)[0] == 405


def test_the_version_passes_the_version_checks_of_clients():
    """kcctl splits the version at dots and compares the first two numbers.

    As in Java, the commit is "unknown" if absent.
    """
    _, root = send("/", version="0.3.0", commit="")

    assert (4, 3) == tuple(map(int, root["version"].split(".")[:2]))
    assert root["version"].endswith("-mirrorflow-0.3.0")
    assert "unknown" == root["commit"]


def test_plugins_have_the_version_of_the_worker():
    """In Java, a connector may request a different version (KIP-891)."""
    _, root = send("/")
    _, plugins = send("/connector-plugins")

    assert {root["version"]} == {plugin["version"] for plugin in plugins}


def test_validation_reports_a_null_value_of_an_unknown_key_without_a_definition():
    """Java's ConfigInfo has a null definition too."""
    path = "/connector-plugins/MirrorSource/config/validate"
    status, body = send(path, "PUT", b'{"connector.class": "MirrorSource", "zz": null, "name": null}')

    assert (status, body["error_count"], body["name"]) == (200, 1, "MirrorSource")
    (entry,) = (entry for entry in body["configs"] if entry["value"]["name"] == "zz")
    assert entry["definition"] is None
    assert ["zz: a property cannot be null; leave it out, or give it a value."] == entry["value"]["errors"]
