"""The settings that Connect's REST API lists for each connector class."""

from mirrorflow_core import setting_table
from mirrorflow_core.setting_table import Scope, Verdict
from mirrorflow_replicator.http.rest_plugins import GROUP, plugin_keys

SOURCE = "MirrorSourceConnector"


def test_each_class_has_its_own_keys():
    """The keys are those of Java's three ConfigDefs."""
    known = {plugin: set(keys) for plugin, keys in plugin_keys().items()}

    assert "groups" in known["MirrorCheckpointConnector"]
    assert "groups" not in known[SOURCE]
    assert "replication.factor" not in known["MirrorHeartbeatConnector"]
    assert all("source.cluster.alias" in names for names in known.values())


def test_keys_have_types_and_defaults():
    """Forms generated from the definitions need both."""
    known = {
        name: (key["type"], key["default_value"], key["required"])
        for name, key in plugin_keys()[SOURCE].items()
    }

    assert ("LIST", ".*", False) == known["topics"]
    assert ("INT", "2", False) == known["replication.factor"]
    assert ("BOOLEAN", "true", False) == known["sync.topic.configs.enabled"]
    assert ("STRING", None, True) == known["source.cluster.alias"]


def test_each_listed_setting_has_documentation():
    """A key of Java without an entry in the setting table would be reported as unknown."""
    listed = {name: key["documentation"] for keys in plugin_keys().values() for name, key in keys.items()}

    assert {} == {name: text for name, text in listed.items() if not text}


def test_mirrorflows_own_settings_are_the_last_group():
    """Their order starts at 1, as in Java's groups."""
    for keys in plugin_keys().values():
        own = [key for key in keys.values() if key["group"] == GROUP]

        assert [*keys.values()][-len(own) :] == own
        assert list(range(1, len(own) + 1)) == [key["order_in_group"] for key in own]


def test_each_honoured_setting_is_listed_for_a_class():
    """Forms generated from the definitions therefore offer each setting that has an effect."""
    listed = {name for keys in plugin_keys().values() for name in keys}
    honoured = {
        key.name
        for key in setting_table.KEYS
        if key.scope is Scope.CONNECTOR
        and key.verdict is Verdict.HONOURED
        and "*" not in key.name
        and key.name != "config.providers"
    }

    assert honoured <= listed | {"mirrorflow.state"}
