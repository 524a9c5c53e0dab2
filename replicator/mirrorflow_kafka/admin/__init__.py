"""Admin requests: topics, configs, ACLs, consumer groups, partition logs and transactions."""
