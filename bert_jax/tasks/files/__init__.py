"""Readers of the files in which tasks are published."""
