"""Schema registries: what is read of one, and which writes give another one the same schemas under the same ids. Pure."""
