"""Exactly once by one fenced writer per partition: ids, claims, positions, and the protocol that takes a flow over."""
