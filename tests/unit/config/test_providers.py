"""Config providers resolve references in values on this host."""

from pathlib import Path

import pytest

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError, UnresolvedReferenceError
from mirrorflow_core.java.jaas import parse_jaas
from mirrorflow_core.java.properties import Reference, has_reference, references, substitute
from mirrorflow_replicator.config.providers import SOURCE_SIZE_MAX_BYTES, Resolver

JAVA = "org.apache.kafka.common.config.provider."


def declared(**params: str) -> dict[str, str]:
    return {
        "config.providers": "env, file,dir",
        "config.providers.env.class": JAVA + "EnvVarConfigProvider",
        "config.providers.file.class": JAVA + "FileConfigProvider",
        "config.providers.dir.class": "DirectoryConfigProvider",
        **{f"config.providers.{key.replace('_', '.')}": value for key, value in params.items()},
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${env:A}", [("env", "", "A")]),
        ("${file:/a/b:c}", [("file", "/a/b", "c")]),
        ("x${env:A}y${env:B}z", [("env", "", "A"), ("env", "", "B")]),
        ("${file:C:/x:y}", [("file", "C", "/x:y")]),
        ("${a}", []),
        ("$env:A", []),
        ("${env:}", [("env", "", "")]),
    ],
)
def test_references_are_parsed_like_in_java(value: str, expected: list[tuple[str, str, str]]):
    """The expression is that of ConfigTransformer, which is not greedy and does not nest."""
    assert expected == [
        (reference.provider, reference.path, reference.key) for reference in references(value)
    ]
    assert bool(expected) == has_reference(value)


def test_unknown_references_are_kept():
    """As in Java, a resolved value is not resolved again."""

    def lookup(reference: Reference) -> str | None:
        return "${env:B}" if reference.key == "A" else None

    assert substitute("${env:A}-${env:C}", lookup) == "${env:B}-${env:C}"


def test_each_provider_resolves_its_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The values come from a variable, a properties file and a whole file with its line end."""
    (tmp_path / "secret.properties").write_text("password=from\\u0020file\n")
    (tmp_path / "token").write_text("whole\n")
    monkeypatch.setenv("MM_TEST", "from env")

    resolved = Resolver(declared()).resolve(
        {
            "a": "${env:MM_TEST}",
            "b": f"${{file:{tmp_path}/secret.properties:password}}",
            "c": f"${{dir:{tmp_path}:token}}",
        }
    )

    assert resolved == {"a": "from env", "b": "from file", "c": "whole\n"}


@pytest.mark.parametrize(
    ("written", "read"), [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a ", "a "), ("\n", "")]
)
@pytest.mark.parametrize("key", ["ssl.key.password", "sasl.jaas.config"])
def test_secret_for_a_client_loses_one_line_end(tmp_path: Path, key: str, written: str, read: str):
    """Editors append a line end, and `kubectl create secret --from-file` keeps it."""
    (tmp_path / "password").write_bytes(written.encode())

    resolved = Resolver(declared()).resolve_client({key: f"${{dir:{tmp_path}:password}}"})

    assert resolved[key] == read


def test_quote_in_a_password_adds_no_jaas_option(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MM_TEST", 'p" evil="1')

    resolved = Resolver(declared()).resolve_client(
        {"sasl.jaas.config": 'M required password="${env:MM_TEST}";'}
    )

    assert {"password": 'p" evil="1'} == parse_jaas(resolved["sasl.jaas.config"]).options


def test_next_client_receives_a_rotated_secret(tmp_path: Path):
    """Files are read again for each client."""
    resolver = Resolver(declared())
    properties = {"ssl.key.password": f"${{dir:{tmp_path}:password}}"}
    (tmp_path / "password").write_text("old")
    assert resolver.resolve_client(properties)["ssl.key.password"] == "old"

    (tmp_path / "password").write_text("new")

    assert resolver.resolve_client(properties)["ssl.key.password"] == "new"


@pytest.mark.parametrize(
    "reference",
    [
        "${vault:a:b}",
        "${env:MM_TEST_ABSENT}",
        "${env:path:MM_TEST}",
        "${file:/nonexistent/file:key}",
        "${dir:/nonexistent:key}",
        "${dir:/tmp:../etc/passwd}",
        "${file::key}",
        "${file:/tmp/\0:key}",
        "${file:/tmp/\ud800:key}",
        "${dir:/tmp:\0}",
        "${env:\ud800}",
    ],
)
def test_unresolved_reference_is_kept_but_refused_for_a_client(reference: str):
    """Java would log in with the text of the reference."""
    resolver = Resolver(declared())

    assert {"topics": reference} == resolver.resolve({"topics": reference})
    with pytest.raises(UnresolvedReferenceError) as raised:
        resolver.resolve_client({"sasl.jaas.config": f"x {reference};"})
    assert ("sasl.jaas.config", reference) == (raised.value.key, raised.value.reference)


def test_a_loop_of_links_is_an_unresolved_reference(tmp_path: Path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")

    with pytest.raises(UnresolvedReferenceError):
        Resolver(declared()).resolve_client({"sasl.jaas.config": f"${{file:{tmp_path}/a:key}}"})


def test_undeclared_provider_resolves_nothing(monkeypatch: pytest.MonkeyPatch):
    """`env` is not built in without a declaration."""
    monkeypatch.setenv("MM_TEST", "value")

    assert Resolver({}).resolve({"a": "${env:MM_TEST}"}) == {"a": "${env:MM_TEST}"}


def test_paths_outside_the_allowed_ones_are_not_read(tmp_path: Path):
    """A symbolic link is resolved before its path is checked."""
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (tmp_path / "outside").write_text("secret")
    (allowed / "link").symlink_to(tmp_path / "outside")
    (allowed / "inside").write_text("fine")
    resolver = Resolver(declared(dir_param_allowed_paths=str(allowed)))

    assert {
        "a": "fine",
        "b": f"${{dir:{allowed}:link}}",
        "c": f"${{dir:{tmp_path}:outside}}",
    } == resolver.resolve(
        {
            "a": f"${{dir:{allowed}:inside}}",
            "b": f"${{dir:{allowed}:link}}",
            "c": f"${{dir:{tmp_path}:outside}}",
        }
    )


def test_variables_outside_the_allowlist_are_not_read(monkeypatch: pytest.MonkeyPatch):
    """The pattern must match the whole name."""
    monkeypatch.setenv("MM_TEST", "yes")
    monkeypatch.setenv("MM_TEST_2", "no")
    resolver = Resolver(declared(env_param_allowlist_pattern="MM_TEST"))

    assert resolver.resolve({"a": "${env:MM_TEST}", "b": "${env:MM_TEST_2}"}) == {
        "a": "yes",
        "b": "${env:MM_TEST_2}",
    }


def test_file_above_the_size_limit_is_not_read(tmp_path: Path):
    """A path to a large file must not exhaust the memory."""
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(SOURCE_SIZE_MAX_BYTES + 1)
    with pytest.raises(UnresolvedReferenceError, match="larger than"):
        Resolver(declared()).resolve_client({"ssl.keystore.key": f"${{dir:{tmp_path}:huge}}"})


def test_java_provider_class_is_refused():
    """Its references would otherwise fail later, far from the cause."""
    with pytest.raises(RefusedSettingError, match=r"config\.providers\.v\.class .*com\.acme\.Vault"):
        Resolver({"config.providers": "v", "config.providers.v.class": "com.acme.Vault"})


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        ({"config.providers": "env"}, "config.providers.env.class"),
        (declared(env_param_allowlist_pattern="("), "config.providers.env.param.allowlist.pattern"),
        (declared(dir_param_allowed_paths="relative"), "config.providers.dir.param.allowed.paths"),
        (declared(dir_param_allowed_paths="/nonexistent/path"), "config.providers.dir.param.allowed.paths"),
    ],
)
def test_invalid_provider_declaration_is_refused_by_key(properties: dict[str, str], key: str):
    with pytest.raises(InvalidSettingError) as raised:
        Resolver(properties)
    assert key == raised.value.key
