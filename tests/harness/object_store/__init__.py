"""An S3 store of this machine for the tests."""
