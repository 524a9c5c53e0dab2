"""The types of the resource and its rules: pure, and the source of the CRD."""
