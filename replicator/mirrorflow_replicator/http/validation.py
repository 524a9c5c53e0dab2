"""Validates a configuration that Connect's REST receives; returns the errors by key.

Anyone who can reach the REST API may call this, so it resolves nothing: values with references are not
checked, and the configuration's own providers are not created. Otherwise the answer would reveal secrets and
files of this host.
"""

from collections.abc import Mapping

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_replicator.config import keys
from mirrorflow_replicator.config.key_rows import Verdict
from mirrorflow_replicator.config.providers import PROVIDERS_KEY
from mirrorflow_replicator.config.worker import (
    parse_connector,
)

_REQUIRED = ("name", "connector.class", "source.cluster.alias")
# Stands for a required value that is a reference.
_UNKNOWN = "reference-{}"
_CONNECTING = ("source.cluster.bootstrap.servers", "target.cluster.bootstrap.servers", "target.cluster.alias")
_CHAINED = ("transforms", "predicates")


def problems(plugin: str, properties: Mapping[str, str], worker: Mapping[str, str]) -> dict[str, str]:
    """Returns an error for each key of *properties* that a connector of class *plugin* would refuse.

    *worker* holds the worker's own properties for the target. Unknown keys are not errors, as in Java.
    """
    found: dict[str, str] = {}
    for name, value in properties.items():
        key = keys.find(name, keys.CONNECTOR_SCOPES)
        if key is not None and key.verdict is Verdict.REFUSED and not key.accepts(value):
            found[name] = str(RefusedSettingError(key=name, why=key.note))
    checked = _without_references({"connector.class": plugin, **properties})
    checked = {name: value for name, value in checked.items() if name not in found}
    # An error names the first wrong key only: without that key the next one appears.
    while True:
        try:
            parse_connector(checked, worker)
        except (InvalidSettingError, RefusedSettingError) as error:
            if error.key in found:
                return found
            found[error.key] = str(error)
            if error.key.startswith(_CHAINED):
                # They depend on each other: only the first wrong one is reported, then errors of other keys.
                checked = {name: value for name, value in checked.items() if not name.startswith(_CHAINED)}
            elif checked.pop(error.key, None) is None:
                return found
        else:
            return found


def _without_references(properties: Mapping[str, str]) -> dict[str, str]:
    placed = (*_REQUIRED, *_CONNECTING)
    return {
        name: _UNKNOWN.format(number) if "${" in value else value
        for number, (name, value) in enumerate(properties.items())
        if not name.startswith(PROVIDERS_KEY) and ("${" not in value or name in placed)
    }
