"""Computes the attention probabilities of a model's heads over texts."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import numpy as np
from jaxtyping import Array, Float

from bert_jax.devices import sharding
from bert_jax.models.encoder import encode
from bert_jax.use import likelihood, row_batches
from bert_jax.use.text_inputs import Text
from bert_jax.weights.load import OpenedModel

# The largest number of tokens in a batch, with padding. In BERT-base, the
# probabilities of a row with 512 tokens take 151 MB.
BATCH_TOKENS = 512


@functools.partial(sharding.jit, static_argnums=0)
def _probabilities(
  encoder: nn.Module, params: Any, batch: dict[str, Array]
) -> Float[Array, "n b h l l"]:
  apply_encoder = functools.partial(encoder.apply, {"params": params})
  return encode(apply_encoder, batch, collect=True)[1]["attention"]


def attention(
  model: OpenedModel,
  texts: Sequence[Text],
  report: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
  """Returns the attention probabilities of every layer and head.

  Args:
    model: a Transformer. An ELECTRA must have only one tower.
    texts: the texts; each must fit into one row of the model.
    report: called after each batch with the number of texts done so far.

  Returns:
    For each text, `tokens` and `attention`: float32 [layers, heads, from, to].

  Raises:
    UserError: the model has no tokenizer, or a text is too long.
  """
  encoded = likelihood.encode_and_check_length(model, texts)
  ids_by_text = [tokens.ids for tokens in encoded]
  results: list[dict[str, Any]] = [{} for _ in texts]
  max_length, num_done = model.module.encoder.max_length, 0
  for batch in row_batches.batches(ids_by_text, max_length, BATCH_TOKENS):
    attention_by_layer = np.asarray(
      _probabilities(
        model.module.encoder, model.params["encoder"], batch.inputs
      )
    )
    for i, text_index in enumerate(batch.row_indices):
      length = len(ids_by_text[text_index])
      results[text_index] = {
        "tokens": list(encoded[text_index].pieces),
        # Copy the slice, so that the memory of the whole batch can be freed.
        "attention": attention_by_layer[:, i, :, :length, :length].copy(),
      }
    num_done += len(batch.row_indices)
    if report is not None:
      report(num_done)
  return results
