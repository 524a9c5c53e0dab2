"""A schema registry for tests, with the documented behaviour of Confluent's: modes, ids, versions, references, soft deletes."""
