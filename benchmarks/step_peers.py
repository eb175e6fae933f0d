"""transformers' models for the families that train steps are timed on.

Each returns its loss first, of keyword arguments that `inputs` makes.
"""

import argparse
from typing import Any

import numpy as np
import torch
import transformers
from step_batches import SIZES
from torch.nn import functional


def _options(args: argparse.Namespace) -> dict[str, Any]:
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
  """Masked LM and next sentence prediction."""
  config = transformers.BertConfig(**_options(args))
  return transformers.BertForPreTraining(config)


def roberta(args: argparse.Namespace) -> torch.nn.Module:
  """Masked LM."""
  config = transformers.RobertaConfig(
    max_position_embeddings=514,
    type_vocab_size=1,
    layer_norm_eps=1e-5,
    **_options(args),
  )
  return transformers.RobertaForMaskedLM(config)


def albert(args: argparse.Namespace) -> torch.nn.Module:
  """Masked LM and sentence order prediction."""
  config = transformers.AlbertConfig(
    embedding_size=128, classifier_dropout_prob=0.0, **_options(args)
  )
  return transformers.AlbertForPreTraining(config)


class Electra(torch.nn.Module):
  """Generator and discriminator on one set of embeddings.

  transformers has both models and not the joint step. The generator's head sees
  the masked positions alone.
  """

  def __init__(self, args: argparse.Namespace) -> None:
    """Builds both models with random weights and shared embeddings."""
    super().__init__()
    width = SIZES["electra"][args.size][3]
    embedding = 128 if args.size == "small" else _options(args)["hidden_size"]
    options = _options(args) | dict(embedding_size=embedding)
    generator = options | dict(
      hidden_size=width,
      num_attention_heads=width // 64,
      intermediate_size=4 * width,
    )
    self.discriminator = transformers.ElectraForPreTraining(
      transformers.ElectraConfig(**options)
    )
    self.generator = transformers.ElectraForMaskedLM(
      transformers.ElectraConfig(**generator)
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
    """Returns 1 x the generator's loss + 50 x the discriminator's.

    Args:
      input_ids: [b, l], masked.
      token_type_ids: [b, l].
      attention_mask: [b, l], 1 at real tokens.
      positions: [b, m], the masked ones.
      original: [b, m], the ids there.
    """
    optional = dict(
      token_type_ids=token_type_ids, attention_mask=attention_mask
    )
    hidden = self.generator.electra(input_ids=input_ids, **optional)[0]
    places = positions[..., None].expand(-1, -1, hidden.shape[-1])
    hidden = hidden.gather(1, places)
    head = self.generator.generator_lm_head
    logits = head(self.generator.generator_predictions(hidden)).float()
    generator_loss = functional.cross_entropy(
      logits.flatten(0, 1), original.flatten()
    )
    chances = logits.detach().softmax(-1)
    # The least exponential noise over chance: a draw from them.
    noise = torch.empty_like(chances).exponential_()
    drawn = (chances / noise).argmax(-1)
    seen = input_ids.scatter(1, positions, drawn)
    replaced = seen != input_ids.scatter(1, positions, original)
    logits = self.discriminator(input_ids=seen, **optional).logits
    losses = functional.binary_cross_entropy_with_logits(
      logits.float(), replaced.float(), reduction="none"
    )
    loss = (losses * attention_mask).sum() / attention_mask.sum()
    return (generator_loss + 50 * loss,)


BUILD = {
  "bert": bert,
  "roberta": roberta,
  "albert": albert,
  "electra": Electra,
}


def inputs(family: str, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
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
  pair = {"bert": "next_sentence_label", "albert": "sentence_order_label"}
  if family in pair:
    arrays[pair[family]] = batch["pair_labels"][:, 0]
  return {key: array.astype(np.int64) for key, array in arrays.items()}
