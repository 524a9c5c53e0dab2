"""TLS and SASL from a Java client's settings, with rotation of secrets."""
