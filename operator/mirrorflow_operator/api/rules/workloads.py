"""The rules of workloads: connectors and their pods, `config`, shared pods, and Spark jobs."""

import re
from collections.abc import Iterator
from typing import Final

from mirrorflow_operator.api.model import amount
from mirrorflow_operator.api.rules.rule import Rule, RuleWord, quoted, starts_with
from mirrorflow_operator.api.workloads import (
    FIELD_OF_KEY,
    FIELD_OF_PREFIX,
    KEYS_OF_WORKER,
    RESERVED_FOLDER,
    RESERVED_VOLUMES,
    SECURITY,
    SECURITY_FIELDS,
    Connector,
    ConnectorKind,
    Connectors,
    field_of,
)

SAMPLE_MIN: Final = "0.000001"  # one window in a million
EXECUTOR_MEMORY_MIN: Final = "768Mi"  # Spark's Java alone takes two thirds of it
_FIVE_FIELDS: Final = "^[^ ]+( +[^ ]+){4}$"


def _is_less(minimum: str) -> str:
    """Returns the CEL condition that the quantity `self` is less than *minimum*."""
    return (
        f"type(self) == int ? self < {int(amount(minimum))}"
        f" : isQuantity(self) && quantity(self).compareTo(quantity('{minimum}')) < 0"
    )


JOB_RULES: Final = (
    Rule(
        paths=("spec.limits.bytesPerSecond", "spec.seed.bytesPerSecond", "spec.verify.bytesPerSecond"),
        wrong=_is_less("1"),
        is_wrong=lambda self: amount(self) < 1,
        problem="<<string(self)>> is not a rate",
        cure="write a number of bytes such as 50Mi, or set spec.state to Paused",
    ),
    Rule(
        paths=("spec.verify.schedule",),
        wrong=f"self != '' && !self.matches('{_FIVE_FIELDS}')",
        is_wrong=lambda self: self and not re.search(_FIVE_FIELDS, self),
        problem="'<<self>>' does not have five fields",
        cure='write minute, hour, day, month and weekday, such as "0 3 * * *"',
    ),
    # Comparing nothing would find everything equal.
    Rule(
        paths=("spec.verify.sample",),
        wrong=f"double(self) < {SAMPLE_MIN}",
        is_wrong=lambda self: float(self) < float(SAMPLE_MIN),
        problem="<<self>> compares nothing",
        cure="write a part of all windows such as 0.1, or 1.0 for all",
    ),
    Rule(
        paths=tuple(
            f"spec.{job}.executors.resources.{part}.memory"
            for job in ("seed", "verify")
            for part in ("requests", "limits")
        ),
        wrong=_is_less(EXECUTOR_MEMORY_MIN),
        is_wrong=lambda self: amount(self) < amount(EXECUTOR_MEMORY_MIN),
        problem="<<string(self)>> is too little for a Spark executor",
        cure=f"write at least {EXECUTOR_MEMORY_MIN}",
    ),
)


_CONNECTORS: Final = tuple(f"spec.connectors.{name.value}" for name in ConnectorKind)
_TEMPLATES: Final = tuple(f"{path}.template" for path in (*_CONNECTORS, "spec.seed", "spec.verify"))
# The operator finds its objects by its labels.
_RESERVED_PREFIXES: Final = ("mirrorflow.io/", "kubernetes.io/", "k8s.io/", "app.kubernetes.io/")
_COLOCATE: Final = "spec.connectors.colocate"
_ONE_POD: Final = f"the connector is in {_COLOCATE}, and connectors that share a pod have one"
_UNSET: Final = Connector()


def _each(paths: tuple[str, ...], *below: str) -> tuple[str, ...]:
    return tuple(f"{path}.{name}" for path in paths for name in below)


def _count(*sources: object | None) -> int:
    return sum(source is not None for source in sources)


def _is_set_by_a_field() -> str:
    """Returns the CEL condition that `key` is reserved, as `field_of` decides."""
    keys = ", ".join(map(quoted, FIELD_OF_KEY))
    return f"key in [{keys}] || {starts_with('key', FIELD_OF_PREFIX)} || key.matches('{SECURITY}')"


def _field_of_key() -> str:
    """Returns the CEL expression for the field that sets `key`, a reserved key."""
    prefixes = (
        f"key.startsWith({quoted(prefix)}) ? {quoted(field)} : " for prefix, field in FIELD_OF_PREFIX.items()
    )
    security = f"key.matches('{SECURITY}') ? {quoted(SECURITY_FIELDS)} : "
    keys = ", ".join(f"{quoted(key)}: {quoted(field)}" for key, field in FIELD_OF_KEY.items())
    return f"({''.join(prefixes)}{security}{{{keys}}}[key])"


def _sets(field: str, connector: str) -> str:
    """Returns the CEL condition that *connector* sets the pod field *field*; none can look into `affinity`."""
    parts = {
        "resources": tuple(
            f"{part}.{amount}" for part in ("requests", "limits") for amount in ("cpu", "memory")
        ),
        "template": (
            "priorityClassName",
            *(f"securityContext.{name}" for name in ("runAsUser", "runAsGroup", "fsGroup")),
            "logging.level",
            "logging.format",
        ),
    }.get(field, () if field == "serviceAccount" else ("",))
    collections = {
        "serviceAccount": ("annotations",),
        "template": (
            "labels", "annotations", "nodeSelector", "tolerations", "topologySpread", "imagePullSecrets",
            "hostAliases", "securityContext.supplementalGroups", "env", "volumes", "volumeMounts",
        ),
    }.get(field, ())  # fmt: skip
    own = f"{connector}.{field}"
    conditions = [f"has({own}.{part})" if part else f"has({own})" for part in parts]
    conditions += [f"(has({own}.{part}) && size({own}.{part}) > 0)" for part in collections]
    if field == "template":
        conditions.append(f"{own}.terminationGracePeriodSeconds != 30")
    return " || ".join(conditions)


def _shared_pods() -> Iterator[Rule]:
    """Yields the rules of `colocate`: one pod, of which only the first connector sets the fields."""
    for name in ConnectorKind:
        yield Rule(
            paths=("spec.connectors",),
            field=f"{name.value}.replicas",
            wrong=f"{_is_listed(name)} && self.{name.value}.replicas != 1",
            is_wrong=lambda self, name=name: name in self.colocate and self.named(name).replicas != 1,
            problem=_ONE_POD,
            cure="write 1, or remove the connector from the list",
        )
        for guest in list(ConnectorKind)[list(ConnectorKind).index(name) + 1 :]:
            yield from _of_guest(guest, name)


def _is_listed(name: ConnectorKind) -> str:
    return f"has(self.colocate) && '{name.value}' in self.colocate"


def _of_guest(guest: ConnectorKind, host: ConnectorKind) -> Iterator[Rule]:
    """Yields the rules of *guest*, which runs in the pod of *host*: what it sets would be silently ignored."""
    of_host = f"{_is_listed(guest)} && '{host.value}' in self.colocate"
    if host is ConnectorKind.CHECKPOINT:
        of_host += " && !('source' in self.colocate)"

    def runs_there(self: Connectors) -> bool:
        return guest in self.colocate and self.host(guest) is host

    for name in ("image", "resources", "service_account", "template"):
        field = Connector.model_fields[name].alias or name
        yield Rule(
            paths=("spec.connectors",),
            field=f"{guest.value}.{field}",
            wrong=f"{of_host} && ({_sets(field, f'self.{guest.value}')})",
            is_wrong=lambda self, name=name: (
                runs_there(self) and getattr(self.named(guest), name) != getattr(_UNSET, name)
            ),
            problem=f"the connector runs in the pod of {host.value}, as {_COLOCATE} defines",
            cure=f"set it in spec.connectors.{host.value}",
        )
    yield Rule(
        paths=("spec.connectors",),
        field=f"{guest.value}.config",
        member="key",
        wrong=f"{of_host} && ({starts_with('key', KEYS_OF_WORKER)})",
        is_wrong=lambda key, self: runs_there(self) and key.startswith(KEYS_OF_WORKER),
        problem=f"it belongs to the process, which is that of {host.value}, as {_COLOCATE} defines",
        cure=f"set it in spec.connectors.{host.value}.config",
    )


RULES: Final = (
    Rule(
        paths=_each(_CONNECTORS, "config"),
        member="key",
        wrong=_is_set_by_a_field(),
        is_wrong=lambda key, _: field_of(key) is not None,
        problem="it is set by a field",
        cure="use <<field>>",
        words={
            "field": RuleWord(cel=_field_of_key(), python=lambda key: field_of(key) or "", plain="that field")
        },
    ),
    Rule(
        paths=_each(_TEMPLATES, "labels", "annotations"),
        member="key",
        wrong=starts_with("key", _RESERVED_PREFIXES),
        is_wrong=lambda key, _: key.startswith(_RESERVED_PREFIXES),
        problem="this prefix belongs to Kubernetes or to the operator",
        cure="use a prefix of your own",
    ),
    Rule(
        paths=_each(_TEMPLATES, "env[]"),
        wrong="self.name.startsWith('MIRRORFLOW_')",
        is_wrong=lambda self: self.name.startswith("MIRRORFLOW_"),
        problem="<<self.name>> is set by the operator",
        cure="remove it",
    ),
    Rule(
        paths=_each(_TEMPLATES, "env[]"),
        field="valueFrom",
        wrong="has(self.valueFrom) && has(self.value) && self.value != ''",
        is_wrong=lambda self: self.value_from is not None and self.value,
        problem="<<self.name>> has a value, too",
        cure="remove one of both",
    ),
    Rule(
        paths=_each(_TEMPLATES, "env[].valueFrom"),
        wrong="[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef)].filter(set, set).size() != 1",
        is_wrong=lambda self: _count(self.secret_key_ref, self.config_map_key_ref, self.field_ref) != 1,
        problem="a reference has exactly one source",
        cure="set one of secretKeyRef, configMapKeyRef and fieldRef",
    ),
    Rule(
        paths=_each(_TEMPLATES, "volumes[]"),
        wrong="[has(self.csi), has(self.secret), has(self.configMap)].filter(set, set).size() != 1",
        is_wrong=lambda self: _count(self.csi, self.secret, self.config_map) != 1,
        problem="volume <<self.name>> must have exactly one source",
        cure="set one of csi, secret and configMap",
    ),
    Rule(
        paths=_each(_TEMPLATES, "volumes[]"),
        field="name",
        wrong=f"self.name.matches('{RESERVED_VOLUMES}')",
        is_wrong=lambda self: re.search(RESERVED_VOLUMES, self.name),
        problem="<<self.name>> is a volume of the operator",
        cure="use another name",
    ),
    Rule(
        paths=_each(_TEMPLATES, "volumeMounts[]"),
        field="mountPath",
        wrong=f"self.mountPath.startsWith('{RESERVED_FOLDER}') || self.mountPath.contains('..')",
        is_wrong=lambda self: self.mount_path.startswith(RESERVED_FOLDER) or ".." in self.mount_path,
        problem="<<self.mountPath>> is a folder of the operator, or leads out of its parent",
        cure="use another folder below /mnt",
    ),
    Rule(
        paths=_TEMPLATES,
        field="volumeMounts",
        member="entry",
        wrong="!has(self.volumes) || !self.volumes.exists(volume, volume.name == entry.name)",
        is_wrong=lambda entry, self: entry.name not in {volume.name for volume in self.volumes},
        problem="<<entry.name>> is not in volumes",
        cure="add the volume, or remove the mount",
    ),
    Rule(
        paths=_each(_TEMPLATES, "tolerations[]"),
        field="value",
        wrong="self.operator == 'Exists' && has(self.value) && self.value != ''",
        is_wrong=lambda self: self.operator == "Exists" and self.value,
        problem="it has no meaning with operator Exists",
        cure="remove it",
    ),
    Rule(
        paths=_each(_TEMPLATES, "tolerations[]"),
        field="key",
        wrong="self.operator == 'Equal' && !has(self.key)",
        is_wrong=lambda self: self.operator == "Equal" and self.key is None,
        problem="it is missing",
        cure="operator Equal needs a key",
    ),
    *(
        Rule(
            paths=("spec.connectors.heartbeat",),
            field=name,
            wrong=f"self.{name} > 1",
            is_wrong=lambda self, name=name: getattr(self, name) > 1,
            problem="heartbeats are one task",
            cure="write 1",
        )
        for name in ("tasks", "replicas")
    ),
    Rule(
        paths=("spec.connectors.colocate",),
        wrong="size(self) == 1",
        is_wrong=lambda self: len(self) == 1,
        problem="<<name>> is alone in it, and shares its pod with no other",
        cure="name another connector, or remove the list",
        words={"name": RuleWord(cel="self[0]", python=lambda self: self[0].value, plain="one connector")},
    ),
    *_shared_pods(),
)
