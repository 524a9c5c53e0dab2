"""Lists every security property of a Java Kafka client with MirrorFlow's verdict on it.

`honoured`: the same meaning as in Java. `mapped`: served by other means with the same effect. `ignored`:
changes nothing that a peer can see; a warning reports it when it is set. `refused`: stops the start, because
continuing would be less safe or could not work. The reason follows the colon. `security.client_security`
applies this table; the settings page is generated from it.

Source: Kafka's SslConfigs, SaslConfigs, SecurityConfig and CommonClientConfigs, to 4.3.
"""

from collections.abc import Mapping
from types import MappingProxyType

_JAVA_CLASS = "it loads a Java class"
_JCA = "ignored: it chooses a Java security provider; OpenSSL does this work here"
_KERBEROS = "ignored: only GSSAPI (Kerberos) reads it, and sasl.mechanism=GSSAPI is refused"
_BROKER = "ignored: only brokers read it; they validate the token"
_HONOURED = "honoured"

_VERDICTS = {
    "security.protocol": _HONOURED,
    "security.providers": _JCA,
    "ssl.protocol": "ignored: ssl.enabled.protocols decides, as it does in Java's client",
    "ssl.provider": _JCA,
    "ssl.cipher.suites": "mapped: IANA names become OpenSSL's; TLS 1.3 suites can only be enabled all or none",
    "ssl.enabled.protocols": "mapped: TLSv1.2 and TLSv1.3; older versions are dropped, and refused if no other is left",
    "ssl.keystore.type": "mapped: JKS, PKCS12, PEM; its content decides between JKS and PKCS12, as in Java 9 and later",
    "ssl.keystore.location": _HONOURED,
    "ssl.keystore.password": _HONOURED,
    "ssl.keystore.key": _HONOURED,
    "ssl.keystore.certificate.chain": _HONOURED,
    "ssl.key.password": _HONOURED,
    "ssl.truststore.type": "mapped: as ssl.keystore.type",
    "ssl.truststore.location": _HONOURED,
    "ssl.truststore.password": _HONOURED,
    "ssl.truststore.certificates": _HONOURED,
    "ssl.keymanager.algorithm": _JCA,
    "ssl.trustmanager.algorithm": _JCA,
    "ssl.secure.random.implementation": _JCA,
    "ssl.endpoint.identification.algorithm": "honoured: https, or empty for no check of the host's name",
    "ssl.engine.factory.class": f"refused: {_JAVA_CLASS}; set ssl.truststore.* and ssl.keystore.*",
    "sasl.mechanism": "honoured: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER; AWS_MSK_IAM becomes OAUTHBEARER; any other is refused",
    "sasl.jaas.config": "honoured: Kafka's PlainLoginModule, ScramLoginModule, OAuthBearerLoginModule; mapped: Amazon's IAMLoginModule",
    "sasl.client.callback.handler.class": "mapped: Amazon's IAM handlers; any other is refused",
    "sasl.login.callback.handler.class": "mapped: Kafka's own OAuthBearer handlers, and those of Amazon, Google, Strimzi, and Spring for Azure; any other is refused",
    "sasl.login.class": f"refused: {_JAVA_CLASS}",
    "sasl.kerberos.service.name": _KERBEROS,
    "sasl.kerberos.kinit.cmd": _KERBEROS,
    "sasl.kerberos.ticket.renew.window.factor": _KERBEROS,
    "sasl.kerberos.ticket.renew.jitter": _KERBEROS,
    "sasl.kerberos.min.time.before.relogin": _KERBEROS,
    "sasl.login.refresh.window.factor": _HONOURED,
    "sasl.login.refresh.window.jitter": _HONOURED,
    "sasl.login.refresh.min.period.seconds": _HONOURED,
    "sasl.login.refresh.buffer.seconds": _HONOURED,
    "sasl.login.connect.timeout.ms": "honoured: default 10000; Java waits without end",
    "sasl.login.read.timeout.ms": "honoured: default 30000; Java waits without end",
    "sasl.login.retry.backoff.ms": _HONOURED,
    "sasl.login.retry.backoff.max.ms": "honoured: the total time of login attempts, as in Java",
    "sasl.oauthbearer.token.endpoint.url": "honoured: https:, http: and file:",
    "sasl.oauthbearer.client.credentials.client.id": _HONOURED,
    "sasl.oauthbearer.client.credentials.client.secret": _HONOURED,
    "sasl.oauthbearer.scope": _HONOURED,
    "sasl.oauthbearer.header.urlencode": _HONOURED,
    "sasl.oauthbearer.jwt.retriever.class": "mapped: Kafka's Default, ClientCredentials, JwtBearer and File retrievers; others refused",
    "sasl.oauthbearer.jwt.validator.class": _BROKER,
    "sasl.oauthbearer.scope.claim.name": _BROKER,
    "sasl.oauthbearer.sub.claim.name": _BROKER,
    "sasl.oauthbearer.clock.skew.seconds": _BROKER,
    "sasl.oauthbearer.expected.audience": _BROKER,
    "sasl.oauthbearer.expected.issuer": _BROKER,
    "sasl.oauthbearer.jwks.endpoint.url": _BROKER,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": _BROKER,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": _BROKER,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": _BROKER,
    "sasl.oauthbearer.assertion.algorithm": "honoured: RS256, ES256",
    "sasl.oauthbearer.assertion.claim.aud": _HONOURED,
    "sasl.oauthbearer.assertion.claim.exp.seconds": _HONOURED,
    "sasl.oauthbearer.assertion.claim.iss": _HONOURED,
    "sasl.oauthbearer.assertion.claim.jti.include": _HONOURED,
    "sasl.oauthbearer.assertion.claim.nbf.seconds": _HONOURED,
    "sasl.oauthbearer.assertion.claim.sub": _HONOURED,
    "sasl.oauthbearer.assertion.file": _HONOURED,
    "sasl.oauthbearer.assertion.private.key.file": "honoured: PKCS #8 as base64, DER or PEM",
    "sasl.oauthbearer.assertion.private.key.passphrase": _HONOURED,
    "sasl.oauthbearer.assertion.template.file": _HONOURED,
}

SECURITY_KEYS: Mapping[str, str] = MappingProxyType(_VERDICTS)


def verdict(key: str) -> tuple[str, str]:
    """Returns the verdict and the reason for *key*. Returns ("honoured", "") for a key that is not a security setting."""
    treatment, _, why = SECURITY_KEYS.get(key, _HONOURED).partition(": ")
    return treatment, why
