"""Decides, before the plan, what of a flow may run: its spec, its version, and which Spark jobs. Pure."""
