"""Switchovers: who may write, decided by one pure function over what both clusters report."""
