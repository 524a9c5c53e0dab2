"""The shell of a switchover: what it observes and changes on both clusters. `mirrorflow_core.switchover` decides."""
