"""Validation of a connector config over REST reports all errors and resolves no references."""

from mirrorflow_replicator.http.rest_plugins import problems

SOURCE = "MirrorSourceConnector"
WORKER = {"bootstrap.servers": "b:9092"}
VALID = {
    "name": "m",
    "connector.class": SOURCE,
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "a:9092",
}


def errors_of(**changes: str) -> dict[str, str]:
    return problems(SOURCE, VALID | {key.replace("__", "."): value for key, value in changes.items()}, WORKER)


def test_a_valid_config_has_no_errors():
    """As in Java, an unknown key is not an error."""
    assert {} == errors_of(**{"what.is.this": "x"})


def test_all_errors_of_a_config_are_reported():
    errors = errors_of(
        **{
            "tasks.max": "many",
            "topics": "(",
            "replication.factor": "0",
            "transforms": "x",
            "topic.filter.class": "com.example.Filter",
        }
    )

    assert {"tasks.max", "topics", "replication.factor", "transforms.x.type", "topic.filter.class"} == set(
        errors
    )
    assert errors["tasks.max"].startswith("tasks.max: 'many' is not a whole number")


def test_a_missing_required_key_is_an_error_of_that_key():
    errors = problems(SOURCE, {}, WORKER)

    assert {"name"} == set(errors)


def test_references_are_not_resolved(tmp_path):
    """Otherwise errors, which contain values, could reveal files of this host to any client."""
    secret = tmp_path / "secret.properties"
    secret.write_text("password=hunter2\n")
    reference = f"${{file:{secret}:password}}"

    errors = errors_of(
        **{
            "config.providers": "file",
            "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
            "config.providers.file.param.allowed.paths": "/does/not/exist",
            "tasks.max": reference,
            "name": reference,
            "source.cluster.alias": reference,
            "source.cluster.bootstrap.servers": reference,
        }
    )

    assert {} == errors
