"""Warns of converters that a connector would inherit from its worker under Java, which are not used here.

Pure. MM2's connectors emit byte arrays. Java's worker passes them through its converters. With Kafka's stock
files, which name JsonConverter, it writes every record as base64 inside JSON. Copies here are always the
bytes of the source.
"""

from collections.abc import Mapping

CONVERTER_KEYS = ("key.converter", "value.converter", "header.converter")
CONVERTER_NOT_USED = "ConverterNotUsed"
BYTE_CONVERTER = "org.apache.kafka.connect.converters.ByteArrayConverter"


def converter_warnings(properties: Mapping[str, str], worker: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a warning if the connector with *properties* inherits converters of *worker* that change bytes.

    It contains no property's value except the simple name of a class.
    """
    inherited = {
        key: worker[key].strip().rpartition(".")[2]
        for key in CONVERTER_KEYS
        if worker.get(key, "").strip() and key not in properties
    }
    changing = {key: name for key, name in inherited.items() if name != BYTE_CONVERTER.rpartition(".")[2]}
    if not changing:
        return ()
    found = ", ".join(f"{key}={name}" for key, name in changing.items())
    sentence = (
        f"{CONVERTER_NOT_USED}: the worker has {found}, which Java's worker would apply to every record of this connector. "
        f"Records are copied byte for byte instead. To have the same with Java, and no warning, set {_joined(changing)} "
        f"to {BYTE_CONVERTER} in the connector."
    )
    return (sentence,)


def _joined(keys: Mapping[str, str]) -> str:
    *most, last = keys
    return f"{', '.join(most)} and {last}" if most else last
