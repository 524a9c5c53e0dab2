"""Plans changes of target topics: missing topics and partitions, settings, ACLs, retention holds."""
