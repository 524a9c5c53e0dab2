"""What REST says of a configuration: every wrong key at once, and nothing of this host."""

from mirrorflow_replicator.http.rest_plugins import problems

SOURCE = "MirrorSourceConnector"
WORKER = {"bootstrap.servers": "b:9092"}
RIGHT = {
    "name": "m",
    "connector.class": SOURCE,
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "a:9092",
}


def wrong(**changes: str) -> dict[str, str]:
    return problems(SOURCE, RIGHT | {key.replace("__", "."): value for key, value in changes.items()}, WORKER)


def test_a_right_configuration_has_no_problem():
    """Unknown keys are none either, as in Java."""
    assert {} == wrong(**{"what.is.this": "x"})


def test_every_wrong_key_is_reported_at_once():
    """Not only the first one, so that one request shows all of them."""
    found = wrong(
        **{
            "tasks.max": "many",
            "topics": "(",
            "replication.factor": "0",
            "transforms": "x",
            "topic.filter.class": "com.example.Filter",
        }
    )

    assert {"tasks.max", "topics", "replication.factor", "transforms.x.type", "topic.filter.class"} == set(
        found
    )
    assert found["tasks.max"].startswith("tasks.max: 'many' is not a whole number")


def test_missing_key_is_reported():
    """As Java: a required key that is not there is an error of that key."""
    found = problems(SOURCE, {}, WORKER)

    assert {"name"} == set(found)


def test_references_are_not_looked_up(tmp_path):
    """A stranger could read this host's files through the sentence about a value."""
    secret = tmp_path / "secret.properties"
    secret.write_text("password=hunter2\n")
    reference = f"${{file:{secret}:password}}"

    found = wrong(
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

    assert {} == found
