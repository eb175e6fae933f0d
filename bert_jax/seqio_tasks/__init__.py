"""The same examples and tasks for seqio, which is optional."""
