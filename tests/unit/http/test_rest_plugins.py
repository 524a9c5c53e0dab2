"""The settings that Connect's REST lists for each connector class."""

from mirrorflow_core import setting_table
from mirrorflow_core.setting_table import Scope, Verdict
from mirrorflow_replicator.http.rest_plugins import GROUP, plugin_keys

SOURCE = "MirrorSourceConnector"


def test_each_class_has_its_own_keys():
    """Those of Java's three ConfigDefs."""
    known = {plugin: set(found) for plugin, found in plugin_keys().items()}

    assert "groups" in known["MirrorCheckpointConnector"]
    assert "groups" not in known[SOURCE]
    assert "replication.factor" not in known["MirrorHeartbeatConnector"]
    assert all("source.cluster.alias" in names for names in known.values())


def test_keys_have_types_and_defaults():
    """A form that is made of them needs both."""
    known = {
        name: (one["type"], one["default_value"], one["required"])
        for name, one in plugin_keys()[SOURCE].items()
    }

    assert ("LIST", ".*", False) == known["topics"]
    assert ("INT", "2", False) == known["replication.factor"]
    assert ("BOOLEAN", "true", False) == known["sync.topic.configs.enabled"]
    assert ("STRING", None, True) == known["source.cluster.alias"]


def test_every_setting_of_java_is_known_and_says_what_it_does_here():
    """A key that Java defines and no table of ours has would be reported as unknown when it is used."""
    listed = {name: one["documentation"] for found in plugin_keys().values() for name, one in found.items()}

    assert {} == {name: text for name, text in listed.items() if not text}


def test_own_settings_come_last_in_a_group_of_their_own():
    """Counted from 1, as Java counts in its groups."""
    for found in plugin_keys().values():
        mine = [one for one in found.values() if one["group"] == GROUP]

        assert [*found.values()][-len(mine) :] == mine
        assert list(range(1, len(mine) + 1)) == [one["order_in_group"] for one in mine]


def test_every_honoured_setting_is_listed_for_a_class():
    """A form that is made of the definitions offers all that has an effect."""
    listed = {name for found in plugin_keys().values() for name in found}
    honoured = {
        key.name
        for key in setting_table.KEYS
        if key.scope is Scope.CONNECTOR
        and key.verdict is Verdict.HONOURED
        and "*" not in key.name
        and key.name != "config.providers"
    }

    assert honoured <= listed | {"mirrorflow.state"}
