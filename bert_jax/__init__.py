"""BERT-family encoders in JAX: pre-training, fine-tuning and study."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
  """`bert_jax.load`, whose imports wait until it is asked for."""
  if name == "load":
    from bert_jax.loading import load

    return load
  raise AttributeError(f"module 'bert_jax' has no attribute {name!r}")
