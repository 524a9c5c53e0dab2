"""The listeners of a broker, with the properties of each one for server.properties and for a client.

They are PLAINTEXT, SSL (the server has a certificate), MTLS (the client must have one too), SASL_PLAINTEXT and SASL_SSL
(PLAIN, SCRAM-SHA-256, SCRAM-SHA-512), OAUTH (OAUTHBEARER without TLS; unsecured tokens), and PROXIED (PLAINTEXT behind
a proxy). INTERNAL and CONTROLLER always exist on 127.0.0.1 without authentication, for the harness. If Kafka needs
ZooKeeper, ZOOKEEPER replaces CONTROLLER, and is not a listener of the broker.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.harness.kafka.certificates import Certificates

SECURITY_PROTOCOLS: Mapping[str, str] = {
    "INTERNAL": "PLAINTEXT",
    "CONTROLLER": "PLAINTEXT",
    "PROXIED": "PLAINTEXT",
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "MTLS": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    "OAUTH": "SASL_PLAINTEXT",
}
LOOPBACK = "127.0.0.1"
OWN = ("INTERNAL", "CONTROLLER", "PROXIED")  # the proxies are also on the loopback interface
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """A name and password that every SASL listener accepts with each mechanism."""

    name: str = "mirror"
    password: str = "mirror-secret"


def address_of(listener: str, address: str) -> str:
    """Returns the address of *listener* on a broker whose clients connect to *address*."""
    return LOOPBACK if listener in OWN else address


def listener_properties(
    listeners: Mapping[str, int],
    *,
    address: str,
    advertised: Mapping[str, int],
    advertised_host: str,
    users: tuple[User, ...],
    certificates: Certificates | None,
) -> dict[str, str]:
    """Returns the broker's properties for *listeners* (name to port) on *address*.

    Brokers advertise *advertised_host* and the ports in *advertised* to clients.
    """

    listeners = {name: port for name, port in listeners.items() if name != "ZOOKEEPER"}

    def as_text(ports: Mapping[str, int], host: str) -> str:
        return ",".join(f"{name}://{address_of(name, host)}:{port}" for name, port in ports.items())

    advertised_ports = {
        name: advertised.get(name, port) for name, port in listeners.items() if name != "CONTROLLER"
    }
    properties = {
        "listeners": as_text(listeners, address),
        "advertised.listeners": as_text(advertised_ports, advertised_host),
        "listener.security.protocol.map": ",".join(
            f"{name}:{SECURITY_PROTOCOLS[name]}" for name in listeners
        ),
        "inter.broker.listener.name": "INTERNAL",
    }
    if "CONTROLLER" in listeners:
        properties["controller.listener.names"] = "CONTROLLER"
    for name in listeners:
        prefix = f"listener.name.{name.lower()}."
        protocol = SECURITY_PROTOCOLS[name]
        if protocol.endswith("SSL"):
            if certificates is None:
                raise ValueError(f"listener {name} needs certificates")
            properties |= {prefix + key: value for key, value in certificates.broker_properties().items()}
            properties[prefix + "ssl.client.auth"] = "required" if name == "MTLS" else "none"
        if name == "OAUTH":
            properties |= {prefix + key: value for key, value in _oauth().items()}
        elif protocol.startswith("SASL"):
            properties |= {prefix + key: value for key, value in _passwords(users).items()}
    return properties


def client_properties(
    listener: str, *, user: User | None, mechanism: str, certificates: Certificates | None
) -> dict[str, str]:
    """Returns librdkafka's properties for a connection over *listener*, without bootstrap.servers."""
    protocol = SECURITY_PROTOCOLS[listener]
    # Without log_level, librdkafka writes many lines to the test's output when a test stops a broker.
    properties = {"security.protocol": protocol, "log_level": "2"}
    if protocol.endswith("SSL") and certificates is not None:
        properties["ssl.ca.location"] = str(certificates.ca_pem)
        if listener == "MTLS":
            properties |= {
                "ssl.certificate.location": str(certificates.client_pem),
                "ssl.key.location": str(certificates.client_key_pem),
            }
    if listener == "OAUTH":
        properties |= {
            "sasl.mechanism": "OAUTHBEARER",
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": f"principal={(user or User()).name}",
        }
    elif protocol.startswith("SASL"):
        user = user or User()
        properties |= {
            "sasl.mechanism": mechanism,
            "sasl.username": user.name,
            "sasl.password": user.password,
        }
    return properties


def java_client_properties(
    listener: str, *, user: User | None, mechanism: str, certificates: Certificates | None
) -> dict[str, str]:
    """Returns the properties for a Java client or an mm2.properties, with PKCS12 stores."""
    protocol = SECURITY_PROTOCOLS[listener]
    properties = {"security.protocol": protocol}
    if protocol.endswith("SSL") and certificates is not None:
        properties |= certificates.truststore_properties()
        if listener == "MTLS":
            properties |= certificates.keystore_properties()
    if listener == "OAUTH":
        name = (user or User()).name
        properties |= {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f'{_OAUTH_MODULE} required unsecuredLoginStringClaim_sub="{name}";',
        }
    elif protocol.startswith("SASL"):
        user = user or User()
        module = _PLAIN_MODULE if mechanism == "PLAIN" else _SCRAM_MODULE
        properties |= {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f'{module} required username="{user.name}" password="{_quoted(user.password)}";',
        }
    return properties


def scram_arguments(users: tuple[User, ...]) -> list[str]:
    """Returns the arguments of "kafka-storage format" that create *users*."""
    arguments = []
    for user in users:
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            arguments += ["--add-scram", f"{mechanism}=[name={user.name},password={user.password}]"]
    return arguments


def plain_users(users: tuple[User, ...]) -> str:
    """Returns `plain.sasl.jaas.config` of a listener that accepts *users*."""
    options = " ".join(f'user_{user.name}="{_quoted(user.password)}"' for user in users)
    return f"{_PLAIN_MODULE} required {options};"


def _quoted(text: str) -> str:
    """Escapes *text* for double quotes in `sasl.jaas.config`."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _passwords(users: tuple[User, ...]) -> dict[str, str]:
    return {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "plain.sasl.jaas.config": plain_users(users),
        "scram-sha-256.sasl.jaas.config": f"{_SCRAM_MODULE} required;",
        "scram-sha-512.sasl.jaas.config": f"{_SCRAM_MODULE} required;",
    }


def _oauth() -> dict[str, str]:
    return {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "oauthbearer.sasl.jaas.config": f'{_OAUTH_MODULE} required unsecuredLoginStringClaim_sub="broker";',
    }
