"""Topics: which ones a flow copies, and what of their settings, ACLs and retention. Pure."""
