"""Decides which task copies which partition."""
