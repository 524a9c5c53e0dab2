"""kafka-python's own fetch and produce messages, generated from Kafka's JSON: an independent implementation of the bytes."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of how it loads its own resources
    from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
    from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

__all__ = ["FetchRequest", "FetchResponse", "ProduceRequest", "ProduceResponse"]
