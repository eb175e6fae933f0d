"""BERT-family encoders in JAX: pre-training, fine-tuning and study."""

__version__ = "0.1.0"
