"""Turns Java's property files (MM2's, the worker's and the connectors' keys) into settings."""
