"""kafka-python's fetch and produce messages, an independent implementation generated from Kafka's JSON."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python loads its resources in an old way
    from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
    from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

__all__ = ["FetchRequest", "FetchResponse", "ProduceRequest", "ProduceResponse"]
