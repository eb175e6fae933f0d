"""Downstream tasks: rows, batches, predictions and official metrics."""
