"""Reconciles MirrorFlows: the steps of one pass, the queue of passes, the watches and the leader's loop."""
