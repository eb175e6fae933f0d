"""Fine-tuning: data of tasks, logits to predictions, official metrics."""
