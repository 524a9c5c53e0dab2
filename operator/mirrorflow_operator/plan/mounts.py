"""Which Secrets and ConfigMaps a connector's properties refer to: these and no others are mounted into its pod.

Read from the properties themselves, whoever wrote them: the plan from the resource's secret fields, or a user as a
reference in some `config`. So a pod sees what its process will ask for, and nothing is listed twice in two places.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mirrorflow_operator.plan.layout import SecretLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounts:
    """Names of objects, each once, in order."""

    secrets: tuple[str, ...] = ()
    config_maps: tuple[str, ...] = ()


def mounts(properties: Iterable[Mapping[str, str]], layout: SecretLayout) -> Mounts:
    """What *properties* refer to below *layout*'s folders, by reference (`${dir:folder:key}`) or as a path."""
    values = [value for one in properties for value in one.values()]
    return Mounts(
        secrets=_below(layout.secrets, values),
        config_maps=_below(layout.config_maps, values),
    )


def _below(folder: str, values: Iterable[str]) -> tuple[str, ...]:
    below = re.compile(re.escape(folder) + r"/([a-z0-9][-a-z0-9.]*)[:/]")
    return tuple(sorted({name for value in values for name in below.findall(value)}))
