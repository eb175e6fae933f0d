"""Text to batches: sources, vocabularies, prepared corpora, builders, tasks."""
