"""Compares outputs and gradients of bert_jax with those of transformers.

All biases and LayerNorms of the models are random, too. The models are
converted as by `bert_jax convert`. The tests and the script that writes
experiments/parity/README.md use this module.
"""

import tempfile
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from bert_jax.models import from_config
from bert_jax.objectives.base import cross_entropy
from bert_jax.weights import hf, model_folder

IGNORED = -100
SMALL_SIZES = dict(
  vocab_size=60,
  hidden_size=32,
  num_hidden_layers=3,
  num_attention_heads=4,
  intermediate_size=48,
  max_position_embeddings=24,
)


class ModelClass(NamedTuple):
  """Names a class of transformers, with the options of two configs.

  Fields that the options do not set have the defaults of transformers.
  """

  family: str
  class_name: str
  small_config: dict
  published_config: dict


_ELECTRA_SIZES = dict(
  hidden_size=256, num_attention_heads=4, intermediate_size=1024
)
MODELS = {
  "bert": ModelClass("bert", "BertForPreTraining", SMALL_SIZES, {}),
  "roberta": ModelClass(
    "roberta",
    "RobertaForMaskedLM",
    SMALL_SIZES | dict(layer_norm_eps=1e-5, type_vocab_size=1),
    dict(
      vocab_size=50265,
      max_position_embeddings=514,
      layer_norm_eps=1e-5,
      type_vocab_size=1,
    ),
  ),
  "albert": ModelClass(
    "albert",
    "AlbertForPreTraining",
    SMALL_SIZES | dict(embedding_size=16),
    dict(
      hidden_size=768,
      num_attention_heads=12,
      intermediate_size=3072,
      num_hidden_layers=12,
    ),
  ),
  "electra generator": ModelClass(
    "electra",
    "ElectraForMaskedLM",
    SMALL_SIZES | dict(embedding_size=16),
    dict(embedding_size=768) | _ELECTRA_SIZES,
  ),
  "electra discriminator": ModelClass(
    "electra",
    "ElectraForPreTraining",
    SMALL_SIZES | dict(embedding_size=16),
    dict(embedding_size=128) | _ELECTRA_SIZES,
  ),
  "distilbert": ModelClass(
    "distilbert",
    "DistilBertForMaskedLM",
    dict(
      vocab_size=60,
      dim=32,
      n_layers=3,
      n_heads=4,
      hidden_dim=48,
      max_position_embeddings=24,
    ),
    {},
  ),
  "gpt": ModelClass(
    "gpt",
    "OpenAIGPTLMHeadModel",
    dict(vocab_size=60, n_embd=32, n_layer=3, n_head=4, n_positions=24),
    {},
  ),
}


def make_reference(
  model: ModelClass, published: bool = False
) -> torch.nn.Module:
  """Returns a model of transformers with random parameters and no dropout."""
  cls = getattr(transformers, model.class_name)
  options = model.published_config if published else model.small_config
  config = cls.config_class(**options, attn_implementation="eager")
  torch.manual_seed(0)
  reference = cls(config).eval()
  deviation = 0.05 if published else 0.3
  with torch.no_grad():
    for name, parameter in reference.named_parameters():
      is_norm = "norm" in name.lower() or ".ln_" in name
      if is_norm or name.endswith("bias"):
        center = 1.0 if is_norm and name.endswith("weight") else 0.0
        parameter.normal_(center, deviation)
      elif not published:
        parameter.normal_(0.0, deviation)
  return reference


def convert_reference(
  reference: torch.nn.Module, family: str
) -> model_folder.Weights:
  """Returns the weights of `reference`, as `bert_jax convert` reads them."""
  with tempfile.TemporaryDirectory() as path:
    reference.save_pretrained(path)
    return hf.read(path, family)


class Batch(NamedTuple):
  """Holds four arrays [rows, length].

  `mask` is 1 at real tokens. `labels` are -100 at tokens without a target.
  """

  ids: np.ndarray
  mask: np.ndarray
  segments: np.ndarray
  labels: np.ndarray


def make_batches(reference: torch.nn.Module, length: int) -> dict[str, Batch]:
  """Returns {name: batch}.

  The four batches have: rows with padding, one row, rows of one token, one row
  of the largest length.

  Args:
    reference: the model, whose sizes limit the batches.
    length: the length of the padded rows.
  """
  config = reference.config
  num_positions = getattr(config, "max_position_embeddings", None)
  num_positions = num_positions or config.n_positions
  max_length = (
    num_positions - 2
    if "Roberta" in type(reference).__name__
    else num_positions
  )
  padding_id = config.pad_token_id or 0
  return {
    "padded": _batch(config.vocab_size, [length, length // 2, 1], padding_id),
    "one row": _batch(config.vocab_size, [min(9, length)], padding_id),
    "one token": _batch(config.vocab_size, [1, 1], padding_id),
    "longest": _batch(config.vocab_size, [max_length], padding_id),
  }


def _batch(vocab_size: int, lengths: list[int], pad: int) -> Batch:
  rng = np.random.default_rng(len(lengths) + max(lengths))
  shape = len(lengths), max(lengths)
  mask = (np.arange(shape[1]) < np.array(lengths)[:, None]).astype(np.int64)
  ids = np.where(mask, rng.integers(3, vocab_size, shape), pad)
  segments = mask * (np.arange(shape[1]) >= np.array(lengths)[:, None] // 2)
  targets = rng.integers(3, vocab_size, shape)
  has_target = (rng.random(shape) < 0.4) | (np.arange(shape[1]) == 0)
  labels = np.where(mask & has_target, targets, IGNORED)
  return Batch(ids, mask, segments, labels)


def reference_outputs(
  model: ModelClass, reference: torch.nn.Module, batch: Batch
) -> dict[str, Any]:
  """Returns hidden states, attention, logits and loss of `reference`.

  The gradients stay in the parameters of `reference`.
  """
  class_name = model.class_name
  inputs = dict(
    input_ids=torch.tensor(batch.ids), attention_mask=torch.tensor(batch.mask)
  )
  if class_name.startswith(("Bert", "Albert", "Electra")):
    inputs["token_type_ids"] = torch.tensor(batch.segments)
  labels = torch.tensor(batch.labels)
  if class_name == "ElectraForPreTraining":
    inputs["labels"] = (labels != IGNORED).long()
  else:
    inputs["labels"] = labels
  if class_name.endswith("ForPreTraining") and model.family != "electra":
    name = (
      "next_sentence_label"
      if class_name[:4] == "Bert"
      else "sentence_order_label"
    )
    inputs[name] = torch.arange(len(batch.ids)) % 2
  outputs = reference(
    **inputs, output_hidden_states=True, output_attentions=True
  )
  reference.zero_grad()
  outputs.loss.backward()
  logits = [tensor for key, tensor in outputs.items() if key.endswith("logits")]
  return dict(
    hidden=np.stack([h.detach().numpy() for h in outputs.hidden_states]),
    attention=np.stack([a.detach().numpy() for a in outputs.attentions]),
    logits=[x.detach().numpy() for x in logits],
    loss=outputs.loss.item(),
  )


def reference_gradients(
  reference: torch.nn.Module, family: str
) -> dict[str, np.ndarray]:
  """Returns the gradients in `reference`, converted as parameters are."""
  original_arrays = [p.detach().clone() for p in reference.parameters()]
  with torch.no_grad():
    for parameter in reference.parameters():
      grad = parameter.grad
      parameter.copy_(torch.zeros_like(parameter) if grad is None else grad)
  arrays = convert_reference(reference, family).arrays
  with torch.no_grad():
    for parameter, original in zip(
      reference.parameters(), original_arrays, strict=True
    ):
      parameter.copy_(original)
  return arrays


def module_outputs(
  model: ModelClass, weights: model_folder.Weights, batch: Batch, gradient: bool
) -> dict[str, Any]:
  """Returns what `reference_outputs` returns, but of bert_jax's module.

  The key "gradients" has {path: gradient}; it is empty if `gradient` is False.
  """
  module = from_config.build(weights.config)
  num_rows, length = batch.ids.shape
  inputs = dict(
    input_ids=jnp.asarray(batch.ids, jnp.int32),
    segment_ids=jnp.asarray(batch.segments, jnp.int32),
    sequence_ids=jnp.asarray(batch.mask, jnp.int32),
    mlm_positions=jnp.tile(jnp.arange(length, dtype=jnp.int32), (num_rows, 1)),
    cls_positions=jnp.zeros((num_rows, 1), jnp.int32),
  )
  if model.class_name.startswith(("Roberta", "Distil", "OpenAI")):
    del inputs["segment_ids"]

  def run(params):
    outputs = module.apply({"params": params}, inputs)
    outputs = outputs if isinstance(outputs, dict) else {"logits": outputs}
    return _loss(outputs, batch), outputs

  def encode(params):
    input_names = ("input_ids", "segment_ids", "sequence_ids")
    return module.apply(
      {"params": params},
      *(inputs.get(name) for name in input_names),
      collect=True,
      method=lambda m, *a, **k: m.encoder(*a, **k),
    )[1]

  def run_and_encode(params):
    if not gradient:
      return run(params), {}, encode(params)
    loss_and_outputs, grads = jax.value_and_grad(run, has_aux=True)(params)
    return loss_and_outputs, grads, encode(params)

  params = model_folder.unflatten(weights.arrays)
  (loss, outputs), grads, encoder_outputs = jax.jit(run_and_encode)(params)
  hidden = jnp.concatenate(
    [encoder_outputs["embeddings"][None], encoder_outputs["hidden"]]
  )
  logits = [
    x[:, 0] if key == "pair_logits" else x for key, x in outputs.items()
  ]
  return dict(
    hidden=np.asarray(hidden),
    attention=np.asarray(encoder_outputs["attention"]),
    logits=[np.asarray(x) for x in logits],
    loss=float(loss),
    gradients=model_folder.flatten(grads) if gradient else {},
  )


def _loss(outputs: dict[str, jax.Array], batch: Batch) -> jax.Array:
  """Returns the loss of pre-training, computed from its definition."""
  labels, is_real = jnp.asarray(batch.labels), jnp.asarray(batch.mask)
  if "rtd_logits" in outputs:
    logits, is_replaced = outputs["rtd_logits"], labels != IGNORED
    losses = jnp.logaddexp(0.0, jnp.where(is_replaced, -logits, logits))
    return (losses * is_real).sum() / is_real.sum()
  if "lm_logits" in outputs:
    logits, labels = outputs["lm_logits"][:, :-1], labels[:, 1:]
  else:
    logits = outputs["mlm_logits"]
  has_target = labels != IGNORED
  losses = cross_entropy(logits, jnp.where(has_target, labels, 0))
  loss = (losses * has_target).sum() / has_target.sum()
  if "pair_logits" in outputs:
    pair = jnp.arange(len(batch.ids)) % 2
    loss += cross_entropy(outputs["pair_logits"][:, 0], pair).mean()
  return loss


def largest_differences(
  model: ModelClass, published: bool = False, batch_names: tuple[str, ...] = ()
) -> dict[str, float]:
  """Returns {name of an output: its largest absolute difference}.

  The difference of a gradient is divided by the largest magnitude in its array.

  Args:
    model: an entry of `MODELS`.
    published: True for the published size, False for the small one.
    batch_names: the names of the batches to compare; () means all batches of
      `make_batches`.
  """
  reference = make_reference(model, published)
  weights = convert_reference(reference, model.family)
  largest_difference_by_name = dict.fromkeys(
    ("hidden", "attention", "logits", "loss"), 0.0
  )
  for name, batch in make_batches(reference, 128 if published else 12).items():
    if batch_names and name not in batch_names:
      continue
    expected = reference_outputs(model, reference, batch)
    outputs = module_outputs(model, weights, batch, gradient=name == "padded")
    for key in ("hidden", "attention"):
      assert expected[key].shape == outputs[key].shape, (
        key,
        expected[key].shape,
        outputs[key].shape,
      )
      largest_difference_by_name[key] = max(
        largest_difference_by_name[key],
        float(abs(expected[key] - outputs[key]).max()),
      )
    assert len(expected["logits"]) == len(outputs["logits"]) > 0
    for x, y in zip(expected["logits"], outputs["logits"], strict=True):
      assert x.shape == y.shape
      largest_difference_by_name["logits"] = max(
        largest_difference_by_name["logits"], float(abs(x - y).max())
      )
    # For rows of one token, GPT-1 has no target, and its loss is NaN.
    if np.isfinite(expected["loss"]):
      largest_difference_by_name["loss"] = max(
        largest_difference_by_name["loss"],
        abs(expected["loss"] - outputs["loss"]),
      )
    if outputs["gradients"]:
      largest_difference_by_name["gradients"] = _gradient_difference(
        reference_gradients(reference, model.family), outputs["gradients"]
      )
  return largest_difference_by_name


def _gradient_difference(
  a: dict[str, np.ndarray], b: dict[str, np.ndarray]
) -> float:
  assert a.keys() == b.keys()
  # The bias of the keys has a gradient of 0, because it adds the same number to
  # all scores of a query.
  return max(
    float(abs(a[key] - b[key]).max() / abs(a[key]).max())
    for key in a
    if not key.endswith("key/bias")
  )
