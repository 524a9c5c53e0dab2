"""The rules of `validate`, in CEL, as the API server checks them before a resource is stored.

Each stands at the place in the schema that it is about, so that kubectl names the field. Both say the same; what CEL
cannot say (what compiles as a regular expression of Java's) is found when the operator reads the
resource, and stands in condition `Accepted`. Costs are bounded by the schema's bounds (KEP-2876: ten million a rule).
"""

from collections.abc import Iterator, Mapping
from typing import Final

from mirrorflow_operator.api.connectors import ConnectorName
from mirrorflow_operator.api.reserved_keys import FIELD_OF_KEY, KEYS_OF_WORKER

Rule = dict[str, str]
Path = str  # as in validate: spec.topics.include; [] stands for every member of a list


def rules() -> Iterator[tuple[Path, Rule]]:
    """Every rule and where it stands."""
    for path, found in RULES.items():
        for one in found:
            yield path, one


def _rule(rule: str, message: str, field: str = "") -> Rule:
    return {"rule": rule, "message": message} | ({"fieldPath": field} if field else {})


_IMMUTABLE: Final = _rule("self == oldSelf", "it never changes: delete the MirrorFlow and make another")
_PATTERNS: Final = (
    _rule(
        "self.all(p, !p.contains(','))",
        "an entry holds a comma, at which MM2 cuts its lists: write two entries",
    ),
    _rule("self.all(p, p == p.trim())", "an entry has blanks around it, which are no part of any name"),
    _rule("self.all(p, !p.matches('^[*+?]'))", "an entry is no regular expression: a lone * is written .*"),
)
_NO_COLON: Final = _rule(
    "self.all(p, !p.replace('(?:', '').contains(':'))",
    "an entry holds a colon, which no topic and no setting has in its name",
)
_TEXT_SOURCE: Final = _rule(
    "has(self.value) ? !has(self.secretName) && !has(self.key) : has(self.secretName) && has(self.key)",
    "it needs either value, or secretName and key",
)
_NOT_OURS: Final = _rule(
    "self.all(k, !k.startsWith('mirrorflow.io/') && !k.startsWith('kubernetes.io/')"
    " && !k.startsWith('k8s.io/') && !k.startsWith('app.kubernetes.io/'))",
    "this prefix belongs to Kubernetes or to the operator: use a prefix of your own",
)


def _of_type(kind: str, *fields: str) -> Iterator[Rule]:
    """*fields* belong to authentication of type *kind*, which needs them."""
    for field in fields:
        yield _rule(
            f"self.type != '{kind}' || has(self.{field})",
            f"it is missing, and type {kind} needs it",
            f".{field}",
        )


def _only_with(field: str, *kinds: str) -> Rule:
    listed = ", ".join(f"'{kind}'" for kind in kinds)
    return _rule(
        f"!has(self.{field}) || self.type in [{listed}]",
        f"it belongs to type {' or '.join(kinds)}",
        f".{field}",
    )


_RESERVED: Final = ", ".join(f"'{key}'" for key in FIELD_OF_KEY)
_SCRAM_AND_PLAIN: Final = ("Plain", "ScramSha256", "ScramSha512")
_AUTHENTICATION: Final = (
    *_of_type("Tls", "certificateAndKey"),
    *(rule for kind in _SCRAM_AND_PLAIN for rule in _of_type(kind, "username", "password")),
    *_of_type("OAuthBearer", "clientId", "clientSecret", "tokenEndpoint"),
    *_of_type("Custom", "config"),
    _only_with("certificateAndKey", "Tls"),
    _only_with("username", *_SCRAM_AND_PLAIN),
    _only_with("password", *_SCRAM_AND_PLAIN),
    _only_with("clientId", "OAuthBearer"),
    _only_with("clientSecret", "OAuthBearer"),
    _only_with("tokenEndpoint", "OAuthBearer"),
    _only_with("scope", "OAuthBearer"),
    _only_with("config", "Custom"),
)


def _of_cluster(side: str) -> Mapping[Path, tuple[Rule, ...]]:
    path = f"spec.{side}"
    return {
        path: (
            _rule(
                "!has(self.authentication) || self.authentication.type != 'Tls' || has(self.tls)",
                "it is missing, and authentication type Tls needs it: write tls: {} at least",
                ".tls",
            ),
        ),
        f"{path}.alias": (_IMMUTABLE,),
        f"{path}.bootstrapServers": (
            _rule(
                "self.all(a, !a.matches(':[0-9]{1,5}$') || int(a.substring(a.lastIndexOf(':') + 1)) > 0"
                " && int(a.substring(a.lastIndexOf(':') + 1)) <= 65535)",
                "an address has no possible port: write host:port with a port from 1 to 65535",
            ),
        ),
        f"{path}.config": (
            _rule(
                "self.all(k, !k.matches('^((consumer|producer|admin)[.])?(security|ssl|sasl)[.]'))",
                f"security is not set here: use {path}.tls and {path}.authentication",
            ),
            _rule(
                "self.all(k, !k.matches('^((consumer|producer|admin)[.])?bootstrap[.]servers$'))",
                f"addresses are not set here: use {path}.bootstrapServers",
            ),
        ),
        f"{path}.tls.trustedCertificates[]": (
            _rule(
                "has(self.secretName) != has(self.configMapName)",
                "it needs one of secretName and configMapName",
            ),
        ),
        f"{path}.authentication": _AUTHENTICATION,
        f"{path}.authentication.username": (_TEXT_SOURCE,),
        f"{path}.authentication.clientId": (_TEXT_SOURCE,),
        f"{path}.authentication.config": (
            _rule(
                "self.all(k, k.startsWith('sasl.') || k.startsWith('ssl.'))",
                f"a key is no sasl. or ssl. property: move it to {path}.config",
            ),
            _rule(
                "self.all(k, !k.matches('([.]password|[.]secret|[.]passphrase|keystore[.]key|sasl[.]jaas[.]config)$')"
                " || self[k].contains('${'))",
                "a value holds a secret in plain text: write a reference such as ${dir:/path:key}",
            ),
        ),
    }


def _of_connector(name: str) -> Mapping[Path, tuple[Rule, ...]]:
    connector = f"spec.connectors.{name}"
    return {
        f"{connector}.config": (
            _rule(
                f"self.all(k, !(k in [{_RESERVED}])"
                " && !k.matches('^(config[.]providers|(source|target)[.]cluster[.])')"
                " && !k.matches('^((source|target)[.])?((consumer|producer|admin)[.])?(override[.])?(security|ssl|sasl)[.]'))",
                "a key is set by a field of the resource: use that field",
            ),
        ),
        f"{connector}.autoscale": (
            _rule(
                "self.minReplicas <= self.maxReplicas",
                "it is less than minReplicas: raise it",
                ".maxReplicas",
            ),
        ),
        **_of_template(f"{connector}.template"),
    }


def _of_template(path: str) -> Mapping[Path, tuple[Rule, ...]]:
    return {
        f"{path}.labels": (_NOT_OURS,),
        f"{path}.annotations": (_NOT_OURS,),
        f"{path}.env": (
            _rule(
                "self.all(v, !v.name.startsWith('MIRRORFLOW_'))", "a name that the operator sets: remove it"
            ),
        ),
        f"{path}.tolerations[]": (
            _rule(
                "self.operator != 'Exists' || !has(self.value) || self.value == ''",
                "it has no meaning with operator Exists: remove it",
                ".value",
            ),
            _rule(
                "self.operator != 'Equal' || has(self.key)",
                "it is missing, and operator Equal needs it",
                ".key",
            ),
        ),
    }


_ONE_MASTER: Final = _rule(
    "!has(self.autoscale) || self.replicas == 1",
    "replicas is set, too, and two masters would set one number: use one of both",
    ".autoscale",
)
_ONE_TASK: Final = _rule(
    "!has(self.autoscale)",
    "the connector is one task, which more pods cannot share: remove it",
    ".autoscale",
)
_IDLE_PODS: Final = _rule(
    "!has(self.autoscale) || self.tasks >= self.autoscale.maxReplicas",
    "it is more than tasks, and a pod without a task is idle: lower it, or raise tasks",
    ".autoscale.maxReplicas",
)
# What is not said of a pod, by field; what `affinity` holds no rule can see.
_UNSAID: Final = {
    "image": "!has({0}.image)",
    "resources": " && ".join(
        f"!has({{0}}.resources.{part}.{amount})"
        for part in ("requests", "limits")
        for amount in ("cpu", "memory")
    ),
    "serviceAccount": "!has({0}.serviceAccount.annotations) || size({0}.serviceAccount.annotations) == 0",
    "template": " && ".join(
        (
            *(
                f"(!has({{0}}.template.{name}) || size({{0}}.template.{name}) == 0)"
                for name in (
                    "labels",
                    "annotations",
                    "nodeSelector",
                    "tolerations",
                    "topologySpread",
                    "imagePullSecrets",
                    "env",
                )
            ),
            "!has({0}.template.priorityClassName)",
            "{0}.template.terminationGracePeriodSeconds == 30",
        )
    ),
}
_WORKERS: Final = "|".join(key.replace(".", "[.]") for key in KEYS_OF_WORKER)


def _colocated() -> Iterator[Rule]:
    """Of `spec.connectors`; who comes after another in a pod says nothing of the pod."""
    yield _rule(
        "!has(self.colocate) || size(self.colocate) != 1",
        "one connector alone shares its pod with nobody: name another, or remove the list",
        ".colocate",
    )
    said = "the connector is in spec.connectors.colocate, and "
    for name in ConnectorName:
        apart = f"!has(self.colocate) || !('{name.value}' in self.colocate)"
        own = f"self.{name.value}"
        yield _rule(
            f"{apart} || {own}.replicas == 1",
            f"{said}what shares a pod has one: write 1, or remove the connector from the list",
            f".{name.value}.replicas",
        )
        if name is ConnectorName.SOURCE:  # the only one that may have it at all
            yield _rule(
                f"{apart} || !has({own}.autoscale)",
                f"{said}what shares a pod has one: remove it, or the connector from the list",
                f".{name.value}.autoscale",
            )
            continue
        first = apart if name is ConnectorName.HEARTBEAT else f"{apart} || !('source' in self.colocate)"
        for field, unsaid in _UNSAID.items():
            yield _rule(
                f"{first} || ({unsaid.format(own)})",
                f"{said}its pod is that of the first among them: set it there",
                f".{name.value}.{field}",
            )
        yield _rule(
            f"{first} || !has({own}.config) || {own}.config.all(k, !k.matches('^({_WORKERS})'))",
            f"{said}a key belongs to the process, which is that of the first among them: set it there",
            f".{name.value}.config",
        )


_RATE: Final = _rule(
    "type(self) == int ? self > 0 : !isQuantity(self) || quantity(self).compareTo(quantity('1')) >= 0",
    "it is no rate: write a number of bytes such as 50Mi, or set spec.state to Paused",
)
_EXECUTOR_MEMORY: Final = _rule(
    "type(self) == int ? self >= 805306368"
    " : !isQuantity(self) || quantity(self).compareTo(quantity('768Mi')) >= 0",
    "it is too little for an executor of Spark: write 768Mi or more",
)
RULES: Final[Mapping[Path, tuple[Rule, ...]]] = {
    "spec": (
        _rule(
            "self.source.alias != self.target.alias",
            "it is the source's too: give each cluster its own alias",
            ".target.alias",
        ),
        _rule(
            "!self.source.bootstrapServers.exists(a, a in self.target.bootstrapServers)",
            "an address is the source's too, so the flow would copy what it has copied",
            ".target.bootstrapServers",
        ),
        *(
            _rule(
                "self.topics.naming.policy != 'Prefix'"
                f" || !self.{side}.alias.contains(self.topics.naming.separator)",
                "it holds the separator of spec.topics.naming, so the alias cannot be told from the topic",
                f".{side}.alias",
            )
            for side in ("source", "target")
        ),
    ),
    "spec.topics.naming": (_IMMUTABLE,),
    "spec.offsetSyncs.location": (_IMMUTABLE,),
    "spec.topics.include": (_rule("self.size() > 0", "it is empty, so nothing would be copied"), *_PATTERNS),
    "spec.topics.exclude": _PATTERNS,
    "spec.topics.configs.exclude": _PATTERNS,
    "spec.topics.configs.exceptions[].topics": (*_PATTERNS, _NO_COLON),
    "spec.topics.configs.exceptions[].exclude": (*_PATTERNS, _NO_COLON),
    "spec.groups.include": _PATTERNS,
    "spec.groups.exclude": _PATTERNS,
    "spec.topics.startFrom": (
        _rule(
            "(self.position == 'Timestamp') == has(self.timestamp)",
            "it belongs to position Timestamp, and to it alone",
            ".timestamp",
        ),
        _rule(
            "!has(self.timestamp) || self.timestamp.matches('^[0-9-]{8,10}T[0-9:.]+(Z|[+-][0-9:]+)$')",
            "it is no moment with a time zone: write it as 2026-01-31T00:00:00Z",
            ".timestamp",
        ),
    ),
    "spec.topics.replicationFactor": (
        _rule("self != 0", "it is 0: write -1 for the target's default, or 1 and more"),
    ),
    "spec.limits.bytesPerSecond": (_RATE,),
    "spec.seed.bytesPerSecond": (_RATE,),
    "spec.verify.bytesPerSecond": (_RATE,),
    "spec.verify.sample": (
        _rule(
            "double(self) >= 0.000001",
            "it compares nothing: write a part of all windows such as 0.1, or 1.0 for all",
        ),
    ),
    "spec.verify.schedule": (
        _rule(
            "self == '' || self.matches('^[^ ]+( +[^ ]+){4}$')",
            'it has not five fields: write minute, hour, day, month and weekday, such as "0 3 * * *"',
        ),
    ),
    "spec.connectors": tuple(_colocated()),
    "spec.connectors.heartbeat": (
        _rule("self.tasks <= 1", "heartbeats are one task: write 1", ".tasks"),
        _rule("self.replicas <= 1", "heartbeats are one task: write 1", ".replicas"),
        _ONE_MASTER,
        _ONE_TASK,
    ),
    "spec.connectors.source": (_ONE_MASTER, _IDLE_PODS),
    "spec.connectors.checkpoint": (_ONE_MASTER, _ONE_TASK),
    **_of_cluster("source"),
    **_of_cluster("target"),
    **_of_connector("source"),
    **_of_connector("checkpoint"),
    **_of_connector("heartbeat"),
    **{
        f"spec.{job}.executors.resources.{part}.memory": (_EXECUTOR_MEMORY,)
        for job in ("seed", "verify")
        for part in ("requests", "limits")
    },
    **_of_template("spec.seed.template"),
    **_of_template("spec.verify.template"),
}
