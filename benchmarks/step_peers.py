"""Builds transformers' models of the families whose train steps are timed.

Each model takes the keyword arguments that `model_inputs` makes. Its first
output is the loss.
"""

import argparse
from typing import Any

import numpy as np
import torch
import transformers
from step_batches import SIZES
from torch.nn import functional


def _common_options(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the options that the configurations of all families have."""
  width, layers, heads = SIZES[args.family][args.size][:3]
  return dict(
    vocab_size=args.vocab,
    hidden_size=width,
    num_hidden_layers=layers,
    num_attention_heads=heads,
    intermediate_size=4 * width,
    hidden_dropout_prob=args.dropout,
    attention_probs_dropout_prob=args.dropout,
    attn_implementation="sdpa",
  )


def bert(args: argparse.Namespace) -> torch.nn.Module:
  """Builds BERT with masked LM and next sentence prediction."""
  config = transformers.BertConfig(**_common_options(args))
  return transformers.BertForPreTraining(config)


def roberta(args: argparse.Namespace) -> torch.nn.Module:
  """Builds RoBERTa with masked LM."""
  config = transformers.RobertaConfig(
    max_position_embeddings=514,
    type_vocab_size=1,
    layer_norm_eps=1e-5,
    **_common_options(args),
  )
  return transformers.RobertaForMaskedLM(config)


def albert(args: argparse.Namespace) -> torch.nn.Module:
  """Builds ALBERT with masked LM and sentence order prediction."""
  config = transformers.AlbertConfig(
    embedding_size=128, classifier_dropout_prob=0.0, **_common_options(args)
  )
  return transformers.AlbertForPreTraining(config)


class Electra(torch.nn.Module):
  """Holds a generator and a discriminator, which share their embeddings.

  transformers has both models, but no step that trains them together. The
  generator's head reads only the masked positions.
  """

  def __init__(self, args: argparse.Namespace) -> None:
    """Builds both models with random weights and shared embeddings."""
    super().__init__()
    generator_width = SIZES["electra"][args.size][3]
    embedding_size = (
      128 if args.size == "small" else _common_options(args)["hidden_size"]
    )
    options = _common_options(args) | dict(embedding_size=embedding_size)
    generator_options = options | dict(
      hidden_size=generator_width,
      num_attention_heads=generator_width // 64,
      intermediate_size=4 * generator_width,
    )
    self.discriminator = transformers.ElectraForPreTraining(
      transformers.ElectraConfig(**options)
    )
    self.generator = transformers.ElectraForMaskedLM(
      transformers.ElectraConfig(**generator_options)
    )
    embeddings = self.discriminator.electra.embeddings
    self.generator.electra.embeddings = embeddings
    self.generator.generator_lm_head.weight = embeddings.word_embeddings.weight

  def forward(
    self,
    input_ids: torch.Tensor,
    token_type_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    positions: torch.Tensor,
    original: torch.Tensor,
  ) -> tuple[torch.Tensor]:
    """Returns (the generator's loss + 50 x the discriminator's loss,).

    Args:
      input_ids: [b, l], with masks.
      token_type_ids: [b, l].
      attention_mask: [b, l], 1 at real tokens.
      positions: [b, m], the positions of the masked tokens.
      original: [b, m], the original ids at these positions.
    """
    other_inputs = dict(
      token_type_ids=token_type_ids, attention_mask=attention_mask
    )
    hidden = self.generator.electra(input_ids=input_ids, **other_inputs)[0]
    indices = positions[..., None].expand(-1, -1, hidden.shape[-1])
    hidden = hidden.gather(1, indices)
    head = self.generator.generator_lm_head
    logits = head(self.generator.generator_predictions(hidden)).float()
    generator_loss = functional.cross_entropy(
      logits.flatten(0, 1), original.flatten()
    )
    probabilities = logits.detach().softmax(-1)
    # The largest probability / exponential noise is a draw from the
    # probabilities.
    noise = torch.empty_like(probabilities).exponential_()
    drawn_ids = (probabilities / noise).argmax(-1)
    seen_ids = input_ids.scatter(1, positions, drawn_ids)
    # A drawn token that equals the original token does not count as replaced.
    is_replaced = seen_ids != input_ids.scatter(1, positions, original)
    logits = self.discriminator(input_ids=seen_ids, **other_inputs).logits
    losses = functional.binary_cross_entropy_with_logits(
      logits.float(), is_replaced.float(), reduction="none"
    )
    loss = (losses * attention_mask).sum() / attention_mask.sum()
    return (generator_loss + 50 * loss,)


MODEL_BUILDERS = {
  "bert": bert,
  "roberta": roberta,
  "albert": albert,
  "electra": Electra,
}


def model_inputs(
  family: str, batch: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Returns the keyword arguments of a family's model for a batch, int64."""
  arrays = {"input_ids": batch["input_ids"]}
  if family != "roberta":
    arrays["token_type_ids"] = batch["segment_ids"]
    arrays["attention_mask"] = batch["sequence_ids"]
  if family == "electra":
    arrays["positions"] = batch["mlm_positions"]
    arrays["original"] = batch["mlm_ids"]
  else:
    labels = np.full(batch["input_ids"].shape, -100)
    np.put_along_axis(labels, batch["mlm_positions"], batch["mlm_ids"], 1)
    arrays["labels"] = labels
  pair_keys = {"bert": "next_sentence_label", "albert": "sentence_order_label"}
  if family in pair_keys:
    arrays[pair_keys[family]] = batch["pair_labels"][:, 0]
  return {key: array.astype(np.int64) for key, array in arrays.items()}
