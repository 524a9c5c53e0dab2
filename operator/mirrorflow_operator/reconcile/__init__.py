"""Reconciles a MirrorFlow in one pass: `reconciler` lists its steps, the other modules are the steps."""
