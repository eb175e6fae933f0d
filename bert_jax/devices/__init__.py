"""Meshes and sharding, several hosts and signals, compiling ahead."""
