"""Lists all validation rules of a MirrorFlow in one table, each once, for the API server and for Python.

The types (`spec`) are checked before. Each rule names its field as kubectl does, and what to write instead.
Rules of kind `PythonRule` are those that CEL cannot express. The server's list types (`set`, `map`) refuse
what `_repetitions` finds. The schema's bounds limit the cost of CEL (KEP-2876: ten million a rule).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic.alias_generators import to_snake

from mirrorflow_core.errors import SettingError
from mirrorflow_core.java.pattern_syntax import PatternSyntaxError
from mirrorflow_core.java.patterns import JavaPattern, PatternList
from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_core.replication_policy import alias_split_problem, is_alias_split
from mirrorflow_core.setting_table import CONNECTOR_SCOPES, SYNONYMS, WORKER_SCOPES, Scope, find, suggestion
from mirrorflow_core.settings import TransformKind
from mirrorflow_core.transforms import TRANSFORMS_PACKAGE, read_transforms
from mirrorflow_operator.api.authentication import (
    Authentication,
    AuthenticationType,
    RegistryAuthenticationType,
)
from mirrorflow_operator.api.model import ApiModel, amount
from mirrorflow_operator.api.rules.rule import (
    Placeholder,
    PythonRule,
    Rule,
    Validation,
    immutable,
    locations_of,
    quoted,
    starts_with,
    value_below,
)
from mirrorflow_operator.api.rules.variable_rules import variable_rules
from mirrorflow_operator.api.spark_workloads import SPARK_KEYS_SET, SPARK_SECRETS, SparkLauncher
from mirrorflow_operator.api.spec import InitialPosition, MirrorFlow, NamingPolicy
from mirrorflow_operator.api.timestamps import parse_timestamp
from mirrorflow_operator.api.workloads import (
    COLOCATABLE,
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
from mirrorflow_operator.errors import FieldError

# The server checks the shape, Python also the date.
_TIMESTAMP: Final = "^[0-9-]{8,10}T[0-9:.]+(Z|[+-][0-9:]+)$"
FILE_BYTES_MIN: Final = "1Mi"
SAMPLE_MIN: Final = "0.000001"  # one window in a million
EXECUTOR_MEMORY_MIN: Final = "768Mi"  # Spark's Java alone takes two thirds of it
_FIVE_FIELDS: Final = "^[^ ]+( +[^ ]+){4}$"
# February 30th, April 31st and the like; where a weekday is given too, cron takes either.
_NEVER: Final = "^[^ ]+ +[^ ]+ +((30|31)(,(30|31))* +(0?2|feb|FEB)|31 +(0?[2469]|11)(,(0?[2469]|11))*) +[*?]$"


def _is_less(minimum: str) -> str:
    """Returns the CEL condition that the quantity `self` is less than *minimum*."""
    return (
        f"type(self) == int ? self < {int(amount(minimum))}"
        f" : isQuantity(self) && quantity(self).compareTo(quantity('{minimum}')) < 0"
    )


def _of_jobs(field: str) -> tuple[str, ...]:
    """Returns the path of *field* in each kind of Spark job that has pods of its own."""
    return tuple(f"spec.{job}.{field}" for job in ("seed", "verify", "archive"))


_SCHEDULES: Final = ("spec.verify.schedule", "spec.archive.schedule")
_URLS: Final = ("spec.archive.url", "spec.restore.url", "spec.spark.eventLog.url")
# A user and a password, or a key or the signature of a SAS token as pyarrow reads it from a query. Everyone who may read the
# flow would see them.
_URL_WITH_SECRET: Final = "://[^/]*:[^/]*@|[?&](access_key|secret_key|session_token|client_secret|sig)="  # noqa: S105  a pattern
ARCHIVE_RULES: Final = (
    Rule(
        paths=_URLS,
        violated_if=f"self.matches('{_URL_WITH_SECRET}')",
        is_violated=lambda self: re.search(_URL_WITH_SECRET, self),
        problem="it contains credentials",
        action="set them in the template.env of a job by valueFrom.secretKeyRef, or use the identity of the pods",
    ),
    Rule(
        paths=("spec.archive",),
        field="schedule",
        violated_if="self.follow && has(self.schedule) && self.schedule != ''",
        is_violated=lambda self: self.follow and self.schedule,
        problem="with follow, one job runs all the time",
        action="remove schedule, or set follow to false",
    ),
    Rule(
        paths=("spec.archive.fileBytes",),
        violated_if=_is_less(FILE_BYTES_MIN),
        is_violated=lambda self: amount(self) < amount(FILE_BYTES_MIN),
        problem="files of this size are too many to be read well",
        action=f"write at least {FILE_BYTES_MIN}",
    ),
    Rule(
        paths=("spec",),
        field="restore.url",
        violated_if="has(self.restore) && !has(self.restore.url) && !has(self.archive)",
        is_violated=lambda self: (
            self.restore is not None and self.restore.url is None and self.archive is None
        ),
        problem="it is missing, and there is no spec.archive",
        action="write the address of the archive, such as s3://bucket/orders",
    ),
    Rule(
        paths=("spec.restore.until",),
        violated_if=f"!self.matches('{_TIMESTAMP}')",
        is_violated=lambda self: parse_timestamp(self) is None,
        problem="'<<self>>' is not a timestamp since 1970 with a time zone",
        action="write it as 2026-01-31T00:00:00Z",
    ),
)
SPARK_CONF_RULES: Final = (
    Rule(
        paths=("spec.spark.conf",),
        member="key",
        violated_if="!key.startsWith('spark.')",
        is_violated=lambda key, _: not key.startswith("spark."),
        problem="it is no property of Spark",
        action="write a key that begins with spark.",
    ),
    Rule(
        paths=("spec.spark.conf",),
        member="key",
        violated_if=f"key.matches('{SPARK_KEYS_SET}')",
        is_violated=lambda key, _: re.search(SPARK_KEYS_SET, key),
        problem="the operator sets it",
        action="remove it; executors, driver, image and template of a job, and spec.spark.eventLog, set what can be changed",
    ),
    Rule(
        paths=("spec.spark.conf",),
        member="key",
        violated_if=f"key.matches('{SPARK_SECRETS}')",
        is_violated=lambda key, _: re.search(SPARK_SECRETS, key),
        problem="everyone who sees the job sees its value",
        action="set a variable in the template.env of a job by valueFrom.secretKeyRef",
    ),
    Rule(
        paths=("spec.spark.eventLog",),
        violated_if="has(self.url) == has(self.claimName)",
        is_violated=lambda self: (self.url is None) == (self.claim_name is None),
        problem="it needs either url or claimName",
        action="write one of them",
    ),
)
JOB_RULES: Final = (
    Rule(
        paths=("spec.limits.bytesPerSecond", *_of_jobs("bytesPerSecond")),
        violated_if=_is_less("1"),
        is_violated=lambda self: amount(self) < 1,
        problem="it is not a rate",
        action="write a number of bytes such as 50Mi, or set spec.state to Paused",
    ),
    Rule(
        paths=_SCHEDULES,
        violated_if=f"self != '' && !self.matches('{_FIVE_FIELDS}')",
        is_violated=lambda self: self and not re.search(_FIVE_FIELDS, self),
        problem="'<<self>>' does not have five fields",
        action='write minute, hour, day, month and weekday, such as "0 3 * * *"',
    ),
    Rule(
        paths=_SCHEDULES,
        violated_if=f"self.matches('{_NEVER}')",
        is_violated=lambda self: re.search(_NEVER, self),
        problem="'<<self>>' names a day that no month of it has, so it would never run",
        action="write a day that exists",
    ),
    # Comparing nothing would find everything equal.
    Rule(
        paths=("spec.verify.sample",),
        violated_if=f"double(self) < {SAMPLE_MIN}",
        is_violated=lambda self: float(self) < float(SAMPLE_MIN),
        problem="<<self>> compares nothing",
        action="write a part of all windows such as 0.1, or 1.0 for all",
    ),
    Rule(
        paths=tuple(
            path for part in ("requests", "limits") for path in _of_jobs(f"executors.resources.{part}.memory")
        ),
        violated_if=_is_less(EXECUTOR_MEMORY_MIN),
        is_violated=lambda self: amount(self) < amount(EXECUTOR_MEMORY_MIN),
        problem="it is too little for a Spark executor",
        action=f"write at least {EXECUTOR_MEMORY_MIN}",
    ),
)


def _fields_of(paths: tuple[str, ...], *below: str) -> tuple[str, ...]:
    return tuple(f"{path}.{name}" for path in paths for name in below)


def _limit_below_request(unit: str) -> Rule:
    """Returns the rule that a limit is not below its request, as Kubernetes demands of every container."""
    asked, most = f"self.requests.{unit}", f"self.limits.{unit}"

    def is_violated(self: Any) -> bool:
        request, limit = getattr(self.requests, unit), getattr(self.limits, unit)
        return request is not None and limit is not None and amount(limit) < amount(request)

    return Rule(
        paths=tuple(
            f"{path}.resources"
            for path in (
                *_CONNECTORS,
                *(path for part in ("driver", "executors") for path in _of_jobs(part)),
            )
        ),
        field=f"limits.{unit}",
        violated_if=f"has({asked}) && has({most}) && isQuantity(string({asked})) && isQuantity(string({most}))"
        f" && quantity(string({most})).compareTo(quantity(string({asked}))) < 0",
        is_violated=is_violated,
        problem="it is below the request",
        action="raise the limit, or lower the request",
    )


_CONNECTORS: Final = tuple(f"spec.connectors.{name.value}" for name in ConnectorKind)
_OF_MM2: Final = tuple(f"spec.connectors.{kind.value}" for kind in COLOCATABLE)
_CONFIGS: Final = _fields_of(_OF_MM2, "config")
_TEMPLATES: Final = tuple(f"{path}.template" for path in _OF_MM2) + _of_jobs("template")
_VARIABLES: Final = _fields_of(_TEMPLATES, "env[]", "initContainers[].env[]")
_OWN_CONTAINERS: Final = ["replicator", "driver", "executor"]
# The operator finds its objects by its labels.
_RESERVED: Final = "^(mirrorflow|(app[.])?kubernetes|k8s)[.]io/"
_COLOCATE: Final = "spec.connectors.colocate"
_ONE_POD: Final = f"connectors of {_COLOCATE} share one pod"
_WORKER_KEYS: Final = f"^({'|'.join(key.replace('.', '[.]') for key in KEYS_OF_WORKER)})"
_UNSET: Final = Connector()


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


def _sets_pod_field(field: str, connector: str) -> str:
    """Returns the CEL condition that *connector* sets the pod field *field*; CEL cannot check `affinity`."""
    parts = {
        "resources": tuple(
            f"{part}.{amount}"
            for part in ("requests", "limits")
            for amount in ("cpu", "memory", "ephemeral__dash__storage")
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
            "hostAliases", "dnsConfig.nameservers", "dnsConfig.searches", "dnsConfig.options",
            "securityContext.supplementalGroups", "initContainers", "env", "volumes", "volumeMounts",
        ),
    }.get(field, ())  # fmt: skip
    own = f"{connector}.{field}"
    conditions = [f"has({own}.{part})" if part else f"has({own})" for part in parts]
    conditions += [f"(has({own}.{part}) && size({own}.{part}) > 0)" for part in collections]
    if field == "template":
        conditions.append(f"{own}.terminationGracePeriodSeconds != 30")
    return " || ".join(conditions)


def _colocation_rules() -> Iterator[Rule]:
    """Yields the rules of `colocate`: one pod, of which only the first connector sets the fields."""
    yield Rule(
        paths=(_COLOCATE,),
        violated_if=f"'{ConnectorKind.SCHEMAS.value}' in self",
        is_violated=lambda self: ConnectorKind.SCHEMAS in self,
        problem="the schema connector has a pod of its own",
        action="remove it from the list",
    )
    for name in COLOCATABLE:
        yield Rule(
            paths=("spec.connectors",),
            field=f"{name.value}.replicas",
            violated_if=f"{_is_listed(name)} && self.{name.value}.replicas != 1",
            is_violated=lambda self, name=name: name in self.colocate and self.named(name).replicas != 1,
            problem=_ONE_POD,
            action="write 1, or remove the connector from the list",
        )
        if COLOCATABLE.index(name) > 0:
            yield from _guest_rules(name)


def _is_listed(name: ConnectorKind) -> str:
    return f"has(self.colocate) && '{name.value}' in self.colocate"


def _guest_rules(guest: ConnectorKind) -> Iterator[Rule]:
    """Yields the rules of *guest* in the pod of an earlier connector: what it sets would be silently ignored."""
    hosts = COLOCATABLE[: COLOCATABLE.index(guest)]
    one_of = " || ".join(f"'{host.value}' in self.colocate" for host in hosts)
    is_guest = f"{_is_listed(guest)} && ({one_of})"

    of_hosts = " or ".join(f"spec.connectors.{host.value}" for host in hosts) + (
        "" if len(hosts) == 1 else ", the first of the list in this order"
    )

    def runs_elsewhere(self: Connectors) -> bool:
        return guest in self.colocate and self.host(guest) is not guest

    for name in ("image", "resources", "service_account", "template"):
        field = Connector.model_fields[name].alias or name
        yield Rule(
            paths=("spec.connectors",),
            field=f"{guest.value}.{field}",
            violated_if=f"{is_guest} && ({_sets_pod_field(field, f'self.{guest.value}')})",
            is_violated=lambda self, name=name: (
                runs_elsewhere(self) and getattr(self.named(guest), name) != getattr(_UNSET, name)
            ),
            problem=f"{_COLOCATE} runs the connector in the pod of another",
            action=f"set it in {of_hosts}",
        )
    yield Rule(
        paths=("spec.connectors",),
        field=f"{guest.value}.config",
        member="key",
        violated_if=f"{is_guest} && key.matches('{_WORKER_KEYS}')",
        is_violated=lambda key, self: runs_elsewhere(self) and key.startswith(KEYS_OF_WORKER),
        problem=f"it is a worker setting, and {_COLOCATE} runs the connector in the worker of another",
        action=f"set it in {of_hosts}",
    )


_TRANSFORM_CLASS: Final = "^transforms[.][^.]+[.]type$"
_TRANSFORMS: Final = [
    f"{package}{kind.value}" for package in ("", TRANSFORMS_PACKAGE) for kind in TransformKind
]


def _is_unknown_class(key: str, config: Mapping[str, str]) -> bool:
    is_reference = "${" in config[key]  # only the pod knows its value
    return (
        re.search(_TRANSFORM_CLASS, key) is not None and not is_reference and config[key] not in _TRANSFORMS
    )


def _refused_transforms(config: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Finds a transformation with which the connector would refuse to start; only the pod knows references."""
    transforms = {key: value for key, value in config.items() if key.startswith(("transforms", "predicates"))}
    if any("${" in value or _is_unknown_class(key, transforms) for key, value in transforms.items()):
        return  # the rule about classes has reported them
    try:
        read_transforms(PropertyReader(transforms))
    except SettingError as error:
        yield "", str(error).rstrip("."), ""


def _unknown_keys(config: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Finds keys of a connector's `config` that neither a connector nor its worker reads; CEL cannot list all others."""
    is_transform_unknown = any(_is_unknown_class(key, config) for key in config)
    for key in config:
        if is_transform_unknown and key.startswith(("transforms", "predicates")):
            continue  # keys of the Java class, which is refused itself
        yield from _unknown_key(key, WORKER_SCOPES if key.startswith(KEYS_OF_WORKER) else CONNECTOR_SCOPES)


def _unknown_client_keys(config: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for key in config:
        yield from _unknown_key(key, (Scope.CLIENT,))


def _unknown_key(key: str, scopes: tuple[Scope, ...]) -> Iterator[tuple[str, str, str]]:
    if key not in SYNONYMS and field_of(key) is None and find(key, scopes) is None:
        near = suggestion(key, scopes).strip("; .")
        problem = "neither MirrorMaker 2 nor MirrorFlow has this setting"
        yield f"[{key}]", problem, near or "remove it; docs/settings.md lists those that have an effect"


# Every namespace has a ServiceAccount of this name, and the flow needs one of its own.
_DEFAULT_ACCOUNT: Final = "default"
_SHARED_WORK: Final = (ConnectorKind.SOURCE, ConnectorKind.CHECKPOINT)
# Spark operators name objects after an application. A schedule appends a time in nanoseconds, and the sum is the value of a label.
_APPLICATION_NAME: Final = "^[a-z][-a-z0-9]{0,34}$"


def _launches_applications(flow: MirrorFlow) -> bool:
    spark = flow.spec.spark
    return spark is not None and spark.launcher is SparkLauncher.SPARK_APPLICATION


NAME_RULES: Final = (
    Rule(
        paths=("",),
        field="metadata.name",
        violated_if=f"self.metadata.name == '{_DEFAULT_ACCOUNT}'",
        is_violated=lambda self: self.metadata.name == _DEFAULT_ACCOUNT,
        problem=f"a flow has a ServiceAccount of its name, and {_DEFAULT_ACCOUNT} is that of the namespace",
        action="choose another name",
    ),
    Rule(
        paths=("",),
        field="metadata.name",
        violated_if="self.metadata.name.matches('^[0-9]') && ("
        + " || ".join(f"self.spec.connectors.{kind.value}.replicas > 1" for kind in _SHARED_WORK)
        + ")",
        is_violated=lambda self: (
            self.metadata.name[0].isdigit()
            and any(self.spec.connectors.named(kind).replicas > 1 for kind in _SHARED_WORK)
        ),
        problem="it begins with a digit, and several pods need a Service, whose name must not",
        action="set replicas to 1, or choose another name",
    ),
    Rule(
        paths=("",),
        field="metadata.name",
        violated_if="has(self.spec.spark) && self.spec.spark.launcher == 'SparkApplication'"
        f" && !self.metadata.name.matches('{_APPLICATION_NAME}')",
        is_violated=lambda self: (
            _launches_applications(self) and not re.search(_APPLICATION_NAME, self.metadata.name)
        ),
        problem="with SparkApplications it must begin with a letter, and have at most 35 characters",
        action="choose another name, or set spec.spark.launcher to Job",
    ),
)


WORKLOAD_RULES: Final[tuple[Rule | PythonRule, ...]] = (
    *map(_limit_below_request, ("cpu", "memory")),
    Rule(
        paths=_CONFIGS,
        member="key",
        violated_if=f"key.matches('{_TRANSFORM_CLASS}') && !self[key].contains('${{') && !(self[key] in {_TRANSFORMS})",
        is_violated=_is_unknown_class,
        problem="this transformation is a Java class that is not built in",
        action=f"write one of {', '.join(kind.value for kind in TransformKind)}",
    ),
    PythonRule(paths=_CONFIGS, find=_refused_transforms),
    PythonRule(paths=_CONFIGS, find=_unknown_keys),
    PythonRule(paths=("spec.source.config", "spec.target.config"), find=_unknown_client_keys),
    Rule(
        paths=_CONFIGS,
        member="key",
        violated_if=_is_set_by_a_field(),
        is_violated=lambda key, _: field_of(key) is not None,
        problem="it is set by a field",
        action="use <<field>>",
        placeholders={
            "field": Placeholder(
                cel=_field_of_key(), python=lambda key: field_of(key) or "", plain="that field"
            )
        },
    ),
    Rule(
        paths=_fields_of(_TEMPLATES, "labels", "annotations"),
        member="key",
        violated_if=f"key.matches('{_RESERVED}')",
        is_violated=lambda key, _: re.search(_RESERVED, key),
        problem="this prefix is reserved for Kubernetes and the operator",
        action="use a prefix of your own",
    ),
    *variable_rules(own=_fields_of(_TEMPLATES, "env[]"), variables=_VARIABLES),
    Rule(
        paths=_fields_of(_TEMPLATES, "volumes[]"),
        violated_if="[has(self.csi), has(self.secret), has(self.configMap), has(self.emptyDir)].filter(set, set).size() != 1",
        is_violated=lambda self: _count(self.csi, self.secret, self.config_map, self.empty_dir) != 1,
        problem="a volume must have exactly one source",
        action="set one of csi, secret, configMap and emptyDir",
    ),
    Rule(
        paths=_fields_of(_TEMPLATES, "volumes[]"),
        field="name",
        violated_if=f"self.name.matches('{RESERVED_VOLUMES}')",
        is_violated=lambda self: re.search(RESERVED_VOLUMES, self.name),
        problem="it is reserved for the operator",
        action="use another name",
    ),
    Rule(
        paths=_fields_of(_TEMPLATES, "volumeMounts[]"),
        field="mountPath",
        violated_if=f"self.mountPath.startsWith('{RESERVED_FOLDER}') || self.mountPath.contains('..')",
        is_violated=lambda self: self.mount_path.startswith(RESERVED_FOLDER) or ".." in self.mount_path,
        problem="it is reserved for the operator, or contains '..'",
        action="use another directory below /mnt",
    ),
    Rule(
        paths=_TEMPLATES,
        field="volumeMounts",
        member="entry",
        violated_if="!has(self.volumes) || !self.volumes.exists(volume, volume.name == entry.name)",
        is_violated=lambda entry, self: entry.name not in {volume.name for volume in self.volumes},
        problem="<<entry.name>> is not in volumes",
        action="add the volume, or remove the mount",
    ),
    Rule(
        paths=_fields_of(_TEMPLATES, "initContainers[]"),
        field="name",
        violated_if=f"self.name in {_OWN_CONTAINERS}",
        is_violated=lambda self: self.name in _OWN_CONTAINERS,
        problem="the pod's own container has this name",
        action="use another name",
    ),
    Rule(
        paths=_TEMPLATES,
        field="initContainers",
        member="entry",
        violated_if="has(entry.volumeMounts) && entry.volumeMounts.exists(mount, !has(self.volumes) ||"
        " !self.volumes.exists(volume, volume.name == mount.name))",
        is_violated=lambda entry, self: (
            {mount.name for mount in entry.volume_mounts} - {volume.name for volume in self.volumes}
        ),
        problem="<<entry.name>> mounts a volume that is not in volumes",
        action="add the volume, or remove the mount",
    ),
    Rule(
        paths=_fields_of(_TEMPLATES, "tolerations[]"),
        field="value",
        violated_if="self.operator == 'Exists' && has(self.value) && self.value != ''",
        is_violated=lambda self: self.operator == "Exists" and self.value,
        problem="it has no meaning with operator Exists",
        action="remove it",
    ),
    Rule(
        paths=_fields_of(_TEMPLATES, "tolerations[]"),
        field="key",
        violated_if="self.operator == 'Equal' && !has(self.key)",
        is_violated=lambda self: self.operator == "Equal" and self.key is None,
        problem="it is missing",
        action="operator Equal needs a key",
    ),
    *(
        Rule(
            paths=("spec.connectors.heartbeat",),
            field=name,
            violated_if=f"self.{name} > 1",
            is_violated=lambda self, name=name: getattr(self, name) > 1,
            problem="heartbeats run as one task",
            action="write 1",
        )
        for name in ("tasks", "replicas")
    ),
    Rule(
        paths=("spec.connectors.colocate",),
        violated_if="size(self) == 1",
        is_violated=lambda self: len(self) == 1,
        problem="it names only <<name>>, and at least two connectors are needed",
        action="name another connector, or remove the list",
        placeholders={
            "name": Placeholder(cel="self[0]", python=lambda self: self[0].value, plain="one connector")
        },
    ),
    *_colocation_rules(),
)


PORT_MAX: Final = 65_535
# The first address of the target that the source has, too.
_SHARED: Final = "self.source.bootstrapServers.filter(a, a in self.target.bootstrapServers)"
_CLIENT: Final = "^((consumer|producer|admin)[.])?"
# Set by `tls` and `authentication`; if `config` set them as well, one of the two would silently win.
_SECURITY: Final = f"{_CLIENT}(security|ssl|sasl)[.]"
_ADDRESSES: Final = f"{_CLIENT}bootstrap[.]servers$"
_SENSITIVE: Final = "([.]password|[.]secret|[.]passphrase|keystore[.]key|sasl[.]jaas[.]config)$"
# A reference, or a module whose login by the identity of a cloud has no secret: of OAUTHBEARER, or of Amazon's IAM.
_SAFE_LOGIN: Final = "[$][{]|^[^ ]*[.](OAuthBearer|IAM)LoginModule"
# A secret option of a login module whose value is not empty, and not only references: password="...", clientSecret='...'.
_PLAIN_OPTION: Final = (
    "(?i)(pass(word|phrase)|secret(accesskey)?|private.?key|assertion|token)\\s*=\\s*"
    "[\"']?([$][{][^}]*})*([^\"'$;\\s]|[$][^{])"
)
_ADDRESS: Final = r"^([a-zA-Z0-9._-]+|[\[][0-9a-fA-F:.]+[\]]):[0-9]{1,5}$"
_PORT: Final = "int(entry.substring(entry.lastIndexOf(':') + 1))"
_AUTHENTICATION: Final = "spec.source.authentication"
_REGISTRIES: Final = ("spec.schemas.source", "spec.schemas.target")
_OF_REGISTRY: Final[Mapping[RegistryAuthenticationType, tuple[str, ...]]] = {
    RegistryAuthenticationType.BASIC: ("username", "password"),
    RegistryAuthenticationType.BEARER: ("token",),
}
_REQUIRED: Final[Mapping[AuthenticationType, tuple[str, ...]]] = {
    AuthenticationType.TLS: ("certificateAndKey",),
    AuthenticationType.PLAIN: ("username", "password"),
    AuthenticationType.SCRAM_SHA_256: ("username", "password"),
    AuthenticationType.SCRAM_SHA_512: ("username", "password"),
    AuthenticationType.OAUTH_BEARER: ("clientId", "tokenEndpoint"),
    AuthenticationType.AWS_IAM: (),
    AuthenticationType.GCP_WORKLOAD_IDENTITY: (),
    AuthenticationType.AZURE_WORKLOAD_IDENTITY: (),
    AuthenticationType.CUSTOM: ("config",),
}
_OPTIONAL: Final[Mapping[AuthenticationType, tuple[str, ...]]] = {
    AuthenticationType.OAUTH_BEARER: ("clientSecret", "clientAssertion", "scope"),
    AuthenticationType.AWS_IAM: ("region", "roleArn"),
    AuthenticationType.AZURE_WORKLOAD_IDENTITY: ("scope",),
}
# Certificates exist only with TLS, and clouds offer no listener without it.
_NEED_TLS: Final = (
    AuthenticationType.TLS,
    AuthenticationType.AWS_IAM,
    AuthenticationType.GCP_WORKLOAD_IDENTITY,
    AuthenticationType.AZURE_WORKLOAD_IDENTITY,
)
_ALLOWED: Final = {kind: (*fields, *_OPTIONAL.get(kind, ())) for kind, fields in _REQUIRED.items()}


def may_hold_secret(key: str) -> bool:
    """Returns whether the value of a Java client's property *key* is, or may contain, a secret."""
    return re.search(_SENSITIVE, key) is not None


def _shared_addresses(spec: Any) -> list[str]:
    return [
        bootstrap_server
        for bootstrap_server in spec.source.bootstrap_servers
        if bootstrap_server in spec.target.bootstrap_servers
    ]


def _required_field(kind: AuthenticationType, field: str) -> Rule:
    return Rule(
        paths=("spec.source.authentication", "spec.target.authentication"),
        field=field,
        violated_if=f"self.type == '{kind.value}' && !has(self.{field})",
        is_violated=lambda self: self.type is kind and not value_below(self, field),
        problem="it is missing",
        action=f"type {kind.value} needs {', '.join(_REQUIRED[kind])}",
    )


def _allowed_field(field: str) -> Rule:
    kinds = [kind for kind, fields in _ALLOWED.items() if field in fields]
    listed = ", ".join(f"'{kind.value}'" for kind in kinds)
    return Rule(
        paths=("spec.source.authentication", "spec.target.authentication"),
        field=field,
        violated_if=f"has(self.{field}) && !(self.type in [{listed}])",
        is_violated=lambda self: value_below(self, field) and self.type not in kinds,
        problem="it has no meaning with <<type>>",
        action=f"remove it, or choose {' or '.join(kind.value for kind in kinds)}",
        placeholders={
            "type": Placeholder(
                cel="'type ' + self.type", python=lambda self: f"type {self.type.value}", plain="this type"
            ),
        },
    )


def _registry_rules() -> Iterator[Rule]:
    """Yields the rules of `spec.schemas`: each type of authentication has all of its fields and no other."""
    paths = tuple(f"{path}.authentication" for path in _REGISTRIES)
    for kind, fields in _OF_REGISTRY.items():
        for field in fields:
            yield Rule(
                paths=paths,
                field=field,
                violated_if=f"(self.type == '{kind.value}') != has(self.{field})",
                is_violated=lambda self, kind=kind, field=field: (
                    (self.type is kind) != (value_below(self, field) is not None)
                ),
                problem=f"it is that of type {kind.value}, which needs it",
                action=f"write {' and '.join(fields)} with type {kind.value}, and with no other type",
            )
    yield Rule(
        paths=("spec.schemas",),
        field="contexts",
        violated_if="has(self.contexts)"
        " && self.contexts.filter(c, self.contexts.filter(d, d.target == c.target).size() > 1).size() > 0",
        is_violated=lambda self: len({context.target for context in self.contexts}) < len(self.contexts),
        problem="two contexts have one target, where two schemas may have one id",
        action="copy each context into one of its own",
    )


def _cluster_rules(path: str) -> Iterator[Rule]:
    """Yields the rules whose messages name fields of this cluster."""
    yield immutable(f"{path}.alias")
    yield Rule(
        paths=(f"{path}.config",),
        member="key",
        violated_if=f"key.matches('{_SECURITY}')",
        is_violated=lambda key, _: re.search(_SECURITY, key),
        problem="security settings are not allowed here",
        action=f"use {path}.tls and {path}.authentication (type Custom takes any sasl. and ssl. key)",
    )
    yield Rule(
        paths=(f"{path}.config",),
        member="key",
        violated_if=f"key.matches('{_ADDRESSES}')",
        is_violated=lambda key, _: re.search(_ADDRESSES, key),
        problem="addresses are not allowed here",
        action=f"use {path}.bootstrapServers",
    )
    yield Rule(
        paths=(f"{path}.authentication.config",),
        member="key",
        violated_if="!key.startsWith('sasl.') && !key.startsWith('ssl.')",
        is_violated=lambda key, _: not key.startswith(("sasl.", "ssl.")),
        problem="it is not a sasl. or ssl. property",
        action=f"move it to {path}.config",
    )


CLUSTER_RULES: Final = (
    Rule(
        paths=("spec",),
        field="target.alias",
        violated_if="self.source.alias == self.target.alias",
        is_violated=lambda self: self.source.alias == self.target.alias,
        problem="<<self.target.alias>> is also the alias of the source",
        action="give each cluster its own alias",
    ),
    Rule(
        paths=("spec",),
        field="target.bootstrapServers",
        violated_if="self.source.bootstrapServers.exists(a, a in self.target.bootstrapServers)",
        is_violated=_shared_addresses,
        problem="<<address>> is also an address of the source, so the flow would copy its own copies",
        action="name two different clusters",
        placeholders={
            "address": Placeholder(
                cel=f"{_SHARED}[0]", python=lambda self: _shared_addresses(self)[0], plain="one of them"
            )
        },
    ),
    *_cluster_rules("spec.source"),
    *_cluster_rules("spec.target"),
    *_registry_rules(),
    Rule(
        paths=("spec.source.bootstrapServers", "spec.target.bootstrapServers"),
        member="entry",
        violated_if=f"!entry.matches(r'{_ADDRESS}')",
        is_violated=lambda entry, _: not re.search(_ADDRESS, entry),
        problem="'<<entry>>' is not an address",
        action="write host:port, such as kafka.example:9092",
    ),
    Rule(
        paths=("spec.source.bootstrapServers", "spec.target.bootstrapServers"),
        member="entry",
        violated_if=f"entry.matches(':[0-9]{{1,5}}$') && ({_PORT} == 0 || {_PORT} > {PORT_MAX})",
        is_violated=lambda entry, _: (
            re.search(":[0-9]{1,5}$", entry) and not 0 < int(entry.rpartition(":")[2]) <= PORT_MAX
        ),
        problem="<<entry>> has an invalid port",
        action=f"write host:port with a port from 1 to {PORT_MAX}",
    ),
    Rule(
        paths=tuple(
            f"{path}.tls.trustedCertificates[]" for path in ("spec.source", "spec.target", *_REGISTRIES)
        ),
        violated_if="has(self.secretName) == has(self.configMapName)",
        is_violated=lambda self: (self.secret_name is None) == (self.config_map_name is None),
        problem="it needs either secretName or configMapName",
        action="name the Secret or the ConfigMap that contains the PEM file",
    ),
    Rule(
        paths=("spec.source", "spec.target"),
        field="tls",
        violated_if=f"has(self.authentication) && self.authentication.type in {[kind.value for kind in _NEED_TLS]}"
        " && !has(self.tls)",
        is_violated=lambda self: (
            self.authentication is not None and self.authentication.type in _NEED_TLS and self.tls is None
        ),
        problem="it is missing, and <<type>> needs it",
        action="write at least tls: {}",
        placeholders={
            "type": Placeholder(
                cel="'authentication type ' + self.authentication.type",
                python=lambda self: f"authentication type {self.authentication.type.value}",
                plain="this type of authentication",
            )
        },
    ),
    *(_required_field(kind, field) for kind, fields in _REQUIRED.items() for field in fields),
    Rule(
        paths=("spec.source.authentication", "spec.target.authentication"),
        violated_if="self.type == 'OAuthBearer' && has(self.clientSecret) == has(self.clientAssertion)",
        is_violated=lambda self: (
            self.type is AuthenticationType.OAUTH_BEARER
            and (self.client_secret is None) == (self.client_assertion is None)
        ),
        problem="type OAuthBearer needs either clientSecret or clientAssertion",
        action="write one of them",
    ),
    *(
        _allowed_field(field)
        for field in dict.fromkeys(field for fields in _ALLOWED.values() for field in fields)
    ),
    Rule(
        paths=(
            *(
                f"spec.{side}.authentication.{name}"
                for side in ("source", "target")
                for name in ("username", "clientId")
            ),
            *(f"{path}.authentication.username" for path in _REGISTRIES),
        ),
        violated_if="has(self.value) ? has(self.secretName) || has(self.key) : !has(self.secretName) || !has(self.key)",
        is_violated=lambda self: (
            (self.value is None, self.secret_name is None, self.key is None)
            not in {(False, True, True), (True, False, False)}
        ),
        problem="it needs either value, or secretName and key",
        action="write {value: ...} or {secretName: ..., key: ...}",
    ),
    Rule(
        paths=("spec.source.authentication.config", "spec.target.authentication.config"),
        member="key",
        violated_if=f"key.matches('{_SENSITIVE}') && (self[key].matches({quoted(_PLAIN_OPTION)})"
        f" || !self[key].matches('{_SAFE_LOGIN}'))",
        is_violated=lambda key, self: (
            may_hold_secret(key)
            and (re.search(_PLAIN_OPTION, self[key]) or not re.search(_SAFE_LOGIN, self[key]))
        ),
        problem="it contains a secret in plain text",
        action="write only a reference, such as ${dir:/path:key}",
    ),
)


_OF_EXCEPTIONS: Final = (
    "spec.topics.configs.exceptions[].topics",
    "spec.topics.configs.exceptions[].exclude",
)
_PATTERNS: Final = (
    "spec.topics.include",
    "spec.topics.exclude",
    "spec.topics.configs.exclude",
    *_OF_EXCEPTIONS,
    "spec.groups.include",
    "spec.groups.exclude",
    "spec.schemas.subjects",
    "spec.schemas.waitingTopics",
)
_NOT_A_REGEX: Final = "is not a Java regular expression"
_REGEX_ACTION: Final = "correct it; a lone * is written .*"
_LONE_QUANTIFIER: Final = "^[*+?]"


def _invalid_patterns(patterns: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Finds patterns that Java would refuse, alone or joined by `|`, which is how MM2 reads a list."""
    is_valid = True
    for index, pattern in enumerate(patterns):
        try:
            JavaPattern(pattern)
        except PatternSyntaxError as error:
            is_valid = False
            if not re.search(_LONE_QUANTIFIER, pattern):
                yield f"[{index}]", f"'{pattern}' {_NOT_A_REGEX}: {error}", error.action or _REGEX_ACTION
    if is_valid and patterns:
        try:
            PatternList(patterns)
        except PatternSyntaxError as error:
            yield "", f"its entries cannot be joined by |, as MM2 does: {error}", "change one"


def _alias_without_separator(side: str) -> Rule:
    return Rule(
        paths=("spec",),
        field=f"{side}.alias",
        violated_if="self.topics.naming.policy == 'Prefix'"
        f" && self.{side}.alias.contains(self.topics.naming.separator)",
        is_violated=lambda self: (
            self.topics.naming.policy is NamingPolicy.PREFIX
            and is_alias_split(getattr(self, side).alias, self.topics.naming.separator)
        ),
        problem=f"it {alias_split_problem('<<self.topics.naming.separator>>')}",
        action="choose another alias, or another spec.topics.naming.separator",
    )


TOPIC_RULES: Final = (
    _alias_without_separator("source"),
    _alias_without_separator("target"),
    immutable("spec.topics.naming", "policy <<oldSelf.policy>> and separator '<<oldSelf.separator>>'"),
    immutable("spec.offsetSyncs.location"),
    Rule(
        paths=("spec.topics.include",),
        violated_if="self.size() == 0",
        is_violated=lambda self: not self,
        problem="it is empty, so no topic would be copied",
        action='write [".*"] for all topics',
    ),
    Rule(
        paths=_PATTERNS,
        member="entry",
        violated_if="entry.contains(',')",
        is_violated=lambda entry, _: "," in entry,
        problem="'<<entry>>' contains a comma, and MM2 splits its lists at commas",
        action="write two entries",
    ),
    Rule(
        paths=_PATTERNS,
        member="entry",
        violated_if="entry != entry.trim()",
        is_violated=lambda entry, _: entry != entry.strip(),
        problem="'<<entry>>' starts or ends with a space, which no name does",
        action="remove the spaces",
    ),
    Rule(
        paths=_PATTERNS,
        member="entry",
        violated_if=f"entry.matches('{_LONE_QUANTIFIER}')",
        is_violated=lambda entry, _: re.search(_LONE_QUANTIFIER, entry),
        problem=f"'<<entry>>' {_NOT_A_REGEX}",
        action=_REGEX_ACTION,
    ),
    PythonRule(paths=_PATTERNS, find=_invalid_patterns),
    # They become `topics:settings`, which is split at the colon.
    Rule(
        paths=_OF_EXCEPTIONS,
        member="entry",
        violated_if="entry.replace('(?:', '').contains(':')",
        is_violated=lambda entry, _: ":" in entry.replace("(?:", ""),
        problem="'<<entry>>' contains a colon, and no topic or setting has one in its name",
        action="remove it",
    ),
    Rule(
        paths=("spec.topics.startFrom",),
        field="timestamp",
        violated_if="self.position == 'Timestamp' && !has(self.timestamp)",
        is_violated=lambda self: self.position is InitialPosition.TIMESTAMP and self.timestamp is None,
        problem="it is missing",
        action="write a time such as 2026-01-31T00:00:00Z",
    ),
    Rule(
        paths=("spec.topics.startFrom",),
        field="timestamp",
        violated_if="has(self.timestamp) && self.position != 'Timestamp'",
        is_violated=lambda self: (
            self.timestamp is not None and self.position is not InitialPosition.TIMESTAMP
        ),
        problem="it contradicts position <<self.position>>",
        action="set position to Timestamp, or remove it",
    ),
    Rule(
        paths=("spec.topics.startFrom",),
        field="timestamp",
        violated_if=f"has(self.timestamp) && self.position == 'Timestamp' && !self.timestamp.matches('{_TIMESTAMP}')",
        is_violated=lambda self: (
            self.timestamp is not None
            and self.position is InitialPosition.TIMESTAMP
            and parse_timestamp(self.timestamp) is None
        ),
        problem="'<<self.timestamp>>' is not a timestamp since 1970 with a time zone",
        action="write it as 2026-01-31T00:00:00Z",
    ),
    Rule(
        paths=("spec.topics.replicationFactor",),
        violated_if="self == 0",
        is_violated=lambda self: self == 0,
        problem="it is 0",
        action="write -1 for the target's default, or at least 1",
    ),
)


RULES: Final[tuple[Rule | PythonRule, ...]] = (
    *NAME_RULES,
    *CLUSTER_RULES,
    *TOPIC_RULES,
    *JOB_RULES,
    *ARCHIVE_RULES,
    *SPARK_CONF_RULES,
    *WORKLOAD_RULES,
)


def check(flow: MirrorFlow) -> list[FieldError]:
    """Returns the errors that the rules find in *flow*, those of one field together."""
    locations = locations_of(flow)
    errors = [*(error for rule in RULES for error in rule.errors(locations)), *_duplicates(flow.spec, "spec")]
    return sorted(errors, key=lambda error: error.path)


def check_authentication(authentication: Authentication, path: str) -> list[FieldError]:
    """Returns the errors of an authentication that is not that of a flow, such as a probe of a pair; *path* names it."""

    def locations(of_flow: str) -> list[tuple[str, Any]]:
        below = of_flow.removeprefix(_AUTHENTICATION)
        if below == of_flow or (below and not below.startswith(".")):
            return []
        value = value_below(authentication, below.lstrip("."))
        return [] if value is None else [(path + below, value)]

    rules = (replace(rule, action=_action_without_flow(rule.action)) for rule in CLUSTER_RULES)
    return sorted((error for rule in rules for error in rule.errors(locations)), key=lambda error: error.path)


def authentication_validations(path: str) -> Iterator[tuple[str, Validation]]:
    """Yields each path of an authentication at *path*, as in `check_authentication`, with each of its rules for the API server."""
    for rule in CLUSTER_RULES:
        for of_flow in rule.paths:
            below = of_flow.removeprefix(_AUTHENTICATION)
            if below != of_flow and (not below or below.startswith(".")):
                yield path + below, replace(rule, action=_action_without_flow(rule.action)).validation()


def _action_without_flow(action: str) -> str:
    """Returns *action* unless it names a field of a flow."""
    return "remove it" if "spec.source." in action else action


def validations() -> Iterator[tuple[str, Validation]]:
    """Yields each path with each of its rules for the API server."""
    for rule in RULES:
        if isinstance(rule, Rule):
            validation = rule.validation()
            for path in rule.paths:
                yield path, validation


def _duplicates(model: ApiModel, path: str) -> Iterator[FieldError]:
    """Yields an error for each entry of a set, or of a list with keys, that is listed twice."""
    for name, field in type(model).model_fields.items():
        value, here = getattr(model, name), f"{path}.{field.alias}"
        if isinstance(value, ApiModel):
            yield from _duplicates(value, here)
        elif isinstance(value, tuple):
            extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
            keys = extra.get("x-kubernetes-list-map-keys", [])
            for index, entry in enumerate(value):
                if isinstance(entry, ApiModel):
                    yield from _duplicates(entry, f"{here}[{index}]")
            if "x-kubernetes-list-type" in extra:
                yield from _duplicate_entries(value, here, keys if isinstance(keys, list) else [])


def _duplicate_entries(
    entries: tuple[object, ...], path: str, keys: Sequence[object]
) -> Iterator[FieldError]:
    names = [
        ", ".join(str(getattr(entry, to_snake(str(key)))) for key in keys)
        if keys
        else str(getattr(entry, "value", entry))
        for entry in entries
    ]
    for position, name in enumerate(names):
        if name in names[:position]:
            yield FieldError(
                path=f"{path}[{position}]", message=f"{name} is listed twice", action="remove one of them"
            )
