"""Clients of applications, by confluent-kafka: an independent implementation, in which the clients of this project have no part.

A rehearsal of a switchover writes and reads with them what an application would. The package is the extra `rehearsal`, and is
imported when a client is made. Each method blocks, so it runs in a thread; a client belongs to one thread.
"""

from collections.abc import Mapping
from typing import Any, Final

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError, UnreachableError
from mirrorflow_core.settings import ClientSettings
from mirrorflow_kafka.security.client_security import check_protocol
from mirrorflow_kafka.security.keystores import armoured, client_key, trusted_certificates
from mirrorflow_kafka.security.sasl import SCRAM_MECHANISMS, chosen_mechanism, login_module, password_login
from mirrorflow_kafka.security.tls import wants_host_check

# An application of a rehearsal must not wait for minutes on a broker that does not respond.
DELIVERY_TIMEOUT_MS: Final = 30_000
CALL_TIMEOUT_S: Final = 30.0
SESSION_TIMEOUT_MS: Final = 10_000
READ_RECORDS_MAX: Final = 500
_PASSWORD_MECHANISMS: Final = SCRAM_MECHANISMS | {"PLAIN"}


def client_version() -> str:
    """Returns the versions of the package and of its library. Raises ModuleNotFoundError."""
    import confluent_kafka  # noqa: PLC0415 - an extra

    return f"confluent-kafka {confluent_kafka.version()}, librdkafka {confluent_kafka.libversion()[0]}"


def application_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings by librdkafka's names for *properties* by Java's, whose references are resolved.

    Raises SettingError, also for an authentication that needs more than a password or a certificate.
    """
    protocol, _ = check_protocol(properties)
    settings = {
        "bootstrap.servers": properties.get("bootstrap.servers", ""),
        "security.protocol": protocol,
    }
    if protocol.endswith("SSL"):
        settings |= _tls_settings(properties)
    if protocol.startswith("SASL"):
        mechanism = chosen_mechanism(properties)
        if mechanism not in _PASSWORD_MECHANISMS:
            raise RefusedSettingError(
                key="sasl.mechanism",
                why="the applications of a rehearsal log in by a password or a certificate; name another probe for it",
            )
        login = password_login(login_module(properties, mechanism), mechanism)
        settings |= {
            "sasl.mechanism": mechanism,
            "sasl.username": login.username,
            "sasl.password": login.password,
        }
    return settings


def _tls_settings(properties: Mapping[str, str]) -> dict[str, str]:
    settings = {"ssl.endpoint.identification.algorithm": "https" if wants_host_check(properties) else "none"}
    if (trusted := trusted_certificates(properties)) is not None:
        settings["ssl.ca.pem"] = b"".join(armoured("CERTIFICATE", der) for der in trusted).decode()
    if (own := client_key(properties)) is not None:
        settings |= {"ssl.key.pem": own.key_pem.decode(), "ssl.certificate.pem": own.chain_pem.decode()}
        if own.password:
            settings["ssl.key.password"] = own.password
    return settings


class ApplicationCluster:
    """Makes the clients of one cluster."""

    def __init__(self, client: ClientSettings, properties: Mapping[str, str]) -> None:
        """*properties*: those of *client*, whose references are resolved. Raises SettingError."""
        self.alias = client.alias
        self._settings = application_settings(properties)

    def producer(self) -> "ApplicationProducer":
        """Returns a producer. Raises InvalidSettingError, ModuleNotFoundError."""
        return ApplicationProducer(self._settings)

    def consumer(self, group: str) -> "ApplicationConsumer":
        """Returns a consumer of *group*, which is no member of it yet. Raises InvalidSettingError, ModuleNotFoundError."""
        return ApplicationConsumer(self.alias, self._settings, group)


class ApplicationProducer:
    """An idempotent producer with acks=all, which waits for each acknowledgement."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = {
            **settings,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 0,
            "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
        }
        self._producer = _made("Producer", self._settings)

    def write(self, topic: str, value: bytes) -> str:
        """Writes a record and waits for the response; returns the name of the error, "" if it is acknowledged.

        A producer that cannot be used any more is replaced, as an application would restart it.
        """
        from confluent_kafka import KafkaException  # noqa: PLC0415 - an extra

        outcomes: list[Any] = []
        try:
            self._producer.produce(topic, value, on_delivery=lambda error, _: outcomes.append(error))
            self._producer.flush(CALL_TIMEOUT_S)
        except KafkaException as error:
            outcomes = [error.args[0]]
            self._producer = _made("Producer", self._settings)
        if not outcomes:
            return "_TIMED_OUT"
        failure = outcomes[0]
        if failure is not None and failure.fatal():
            self._producer = _made("Producer", self._settings)
        return "" if failure is None else str(failure.name())


class ApplicationConsumer:
    """A consumer of a group that commits by itself only when it is asked to, and begins at the earliest record."""

    def __init__(self, alias: str, settings: Mapping[str, str], group: str) -> None:
        self._alias = alias
        self._addresses = settings["bootstrap.servers"]
        own = {
            **settings,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "isolation.level": "read_committed",
        }
        self._consumer = _made("Consumer", own)

    def join(self, topic: str) -> None:
        """Becomes a member of the group for *topic*."""
        self._consumer.subscribe([topic])

    def read(self, timeout_s: float) -> list[bytes]:
        """Returns the values of the records that arrive within *timeout_s*. Raises UnreachableError."""
        from confluent_kafka import KafkaException  # noqa: PLC0415 - an extra

        try:
            messages = self._consumer.consume(READ_RECORDS_MAX, timeout_s)
        except KafkaException as error:
            raise self._failed(error) from error
        return [message.value() or b"" for message in messages if not message.error()]

    def commit(self) -> None:
        """Commits the offsets of what was read. Raises UnreachableError."""
        from confluent_kafka import KafkaException  # noqa: PLC0415 - an extra

        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            raise self._failed(error) from error

    def committed(self, topic: str) -> int | None:
        """Returns the group's committed offset of partition 0 of *topic*; None without one, and while it cannot be read."""
        from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415 - an extra

        try:
            (partition,) = self._consumer.committed([TopicPartition(topic, 0)], timeout=CALL_TIMEOUT_S)
        except KafkaException:
            return None
        return int(partition.offset) if partition.error is None and partition.offset >= 0 else None

    def end(self, topic: str) -> int | None:
        """Returns the end of partition 0 of *topic*; None while the topic cannot be read."""
        from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415 - an extra

        try:
            _, end = self._consumer.get_watermark_offsets(TopicPartition(topic, 0), CALL_TIMEOUT_S)
        except KafkaException:
            return None
        return int(end)

    def close(self) -> None:
        """Leaves the group."""
        self._consumer.close()

    def _failed(self, error: Exception) -> UnreachableError:
        problem = f"a client by confluent-kafka reports {error.args[0]}"
        return UnreachableError(cluster=self._alias, addresses=self._addresses, problem=problem)


def _made(kind: str, settings: Mapping[str, Any]) -> Any:
    import confluent_kafka  # noqa: PLC0415 - an extra

    # Otherwise the library writes each lost connection to stderr, between the lines of the command.
    quiet = {**settings, "log_level": 2}
    try:
        return getattr(confluent_kafka, kind)(quiet)
    except confluent_kafka.KafkaException as error:
        raise InvalidSettingError(
            key="bootstrap.servers", problem=f"confluent-kafka refuses the client: {error.args[0]}"
        ) from error
