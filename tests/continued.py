"""Trains a model of transformers further, with bert_jax and with torch.

The reference is a class of transformers. torch's AdamW trains it on the batches
that bert_jax's run reads, in float32 and without dropout.
"""

import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from torch.nn import functional

from bert_jax.cli import configs
from bert_jax.examples import loader
from bert_jax.objectives import electra
from bert_jax.training import config as config_lib
from bert_jax.training import logging, train

LENGTH = 32
ADAM = dict(betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0)
_SIZES = dict(
  hidden_size=16,
  num_hidden_layers=2,
  num_attention_heads=2,
  intermediate_size=32,
  max_position_embeddings=LENGTH + 2,
  pad_token_id=0,
)
# Family -> (a class of transformers, its sizes, a config of this project).
REFERENCES = {
  "bert": ("BertForPreTraining", _SIZES, "bert:base"),
  "roberta": (
    "RobertaForMaskedLM",
    _SIZES | dict(type_vocab_size=1, layer_norm_eps=1e-5),
    "roberta:base",
  ),
  "albert": (
    "AlbertForPreTraining",
    _SIZES | dict(embedding_size=8, hidden_act="gelu"),
    "albert:base_v1",
  ),
  "electra": (
    "ElectraForPreTraining",
    _SIZES | dict(embedding_size=8),
    "electra:small",
  ),
  "distilbert": (
    "DistilBertForMaskedLM",
    dict(
      **dict(dim=16, n_layers=2, n_heads=2, hidden_dim=32, pad_token_id=0),
      max_position_embeddings=LENGTH + 2,
    ),
    "bert:base",
  ),
  "gpt": (
    "OpenAIGPTLMHeadModel",
    dict(n_embd=16, n_layer=2, n_head=2, n_positions=LENGTH + 2),
    "gpt:gpt1",
  ),
}
# The sizes of ELECTRA's generator. It has one head, because models/electra.py
# gives a generator hidden // 64 heads, but at least one.
GENERATOR_SIZES = dict(
  hidden_size=8, num_attention_heads=1, intermediate_size=32
)
_CHANGES_BY_FAMILY = {
  "roberta": {"model.padding_id": 0},
  "electra": {"model.generator_hidden": None},
  "distilbert": {
    "model.family": "distilbert",
    "model.variant": "base",
    "objective.pairs": False,
    "data.builder": "full_sentences",
    "data.short_probability": None,
    "data.random_share": None,
  },
  "gpt": {"data.max_predictions": None},
}


def write_reference(path, family, vocabulary, vocab_size=64, seed=0):
  """Writes a random model of transformers.

  Args:
    path: the new folder.
    family: a key of `REFERENCES`.
    vocabulary: the path of the vocab.txt to copy.
    vocab_size: the number of vectors in the word table.
    seed: the seed of the random parameters.

  Returns:
    The model. For ELECTRA, the discriminator and the generator, which share
    their embeddings; each is written into a folder in `path`.
  """
  class_name, sizes, _ = REFERENCES[family]
  model = build_reference(class_name, sizes | dict(vocab_size=vocab_size), seed)
  path = pathlib.Path(path)
  path.mkdir(parents=True)
  shutil.copy(vocabulary, path / "vocab.txt")
  if family != "electra":
    model.save_pretrained(path)
    return model
  sizes = sizes | GENERATOR_SIZES | dict(vocab_size=vocab_size)
  generator = build_reference("ElectraForMaskedLM", sizes, seed + 1)
  generator.electra.embeddings = model.electra.embeddings
  generator.tie_weights()
  model.save_pretrained(path / "discriminator")
  generator.save_pretrained(path / "generator")
  return model, generator


def build_reference(name, sizes, seed=0):
  """Returns a model of transformers whose parameters are all random."""
  cls = getattr(transformers, name)
  torch.manual_seed(seed)
  model = cls(cls.config_class(**sizes, attn_implementation="eager")).eval()
  with torch.no_grad():
    for key, parameter in model.named_parameters():
      is_norm = "norm" in key.lower() or ".ln_" in key
      is_scale = is_norm and key.endswith("weight")
      parameter.normal_(1.0 if is_scale else 0.0, 0.2)
  return model


def config_of(family, prepared_folder, model_folder, **changes):
  """Returns a small version of a published config that starts from a model."""
  config = configs.load_defaults(REFERENCES[family][2])
  small_values = {
    "init_from": str(model_folder),
    "data.path": str(prepared_folder),
    "total_steps": 20,
    "batch_size": 4,
    "micro_batches": 1,
    "phases": {},
    "data.length": LENGTH,
    "data.max_predictions": 6,
    "data.cased": False,
    "model.max_positions": None,
    "model.dropout": 0.0,
    "model.attention_dropout": 0.0,
    "model.activation": None,
    "model.dtype": "float32",
    "optimizer": dict(
      **dict(name="adamw", b1=0.9, b2=0.999, epsilon=1e-6, weight_decay=0.0),
      clip_norm=0.0,
    ),
    "schedule": dict(name="linear", peak=2e-3, warmup=0.25),
    "log.every": 1,
    "evaluate.every": 0,
    "checkpoint.every": 20,
  }
  for key, setting in (
    small_values | _CHANGES_BY_FAMILY.get(family, {}) | changes
  ).items():
    section = config
    *section_names, last_name = key.split(".")
    for section_name in section_names:
      section = section[section_name]
    if setting is None:
      section.pop(last_name, None)
    else:
      section[last_name] = setting
  config_lib.parse(config)
  return config


def run_config(config, workdir):
  """Runs a config.

  Returns:
    (the lines of metrics.jsonl about training, the run's config.json).
  """
  train.run(config, str(workdir))
  lines = logging.read_rows(str(workdir / "metrics.jsonl"))
  config = json.loads((workdir / "config.json").read_text(encoding="utf-8"))
  return [row for row in lines if row["split"] == "train"], config


def batches_of_run(config):
  """Returns the batch of each step of a run, as numpy arrays."""
  data = loader.open_data(seed=config["seed"], **config["data"])
  batch_size = config["batch_size"]
  return [
    data.read(i * batch_size, batch_size) for i in range(config["total_steps"])
  ]


# Returns (all arrays of the batch as tensors, the inputs of the model).
def _tensors(batch, family):
  tensor_by_key = {
    key: torch.from_numpy(np.asarray(array)) for key, array in batch.items()
  }
  inputs = dict(
    input_ids=tensor_by_key["input_ids"].long(),
    attention_mask=(tensor_by_key["sequence_ids"] > 0).long(),
  )
  if "segment_ids" in tensor_by_key:
    inputs["token_type_ids"] = tensor_by_key["segment_ids"].long()
  if family in ("roberta", "distilbert"):
    inputs.pop("token_type_ids", None)
  return tensor_by_key, inputs


def _gather(hidden, positions):
  """Returns the vectors [b, m, d] at `positions` of `hidden`, [b, l, d]."""
  return torch.stack(
    [
      row_states[row_positions]
      for row_states, row_positions in zip(
        hidden, positions.long(), strict=True
      )
    ]
  )


def _weighted_mean(losses, weights):
  return (losses * weights).sum() / weights.sum()


def _masked_lm_loss(logits, tensors):
  logits = _gather(logits, tensors["mlm_positions"])
  losses = functional.cross_entropy(
    logits.transpose(1, 2), tensors["mlm_ids"].long(), reduction="none"
  )
  return _weighted_mean(losses, tensors["mlm_weights"])


def reference_losses(model, family, batch, sample_key):
  """Returns {name of a loss: its mean over a batch}; "loss" is the total loss.

  Args:
    model: the model that `write_reference` returned.
    family: a key of `REFERENCES`.
    batch: numpy arrays of the run's batch.
    sample_key: the random key for drawing tokens of ELECTRA's generator.
  """
  tensors, inputs = _tensors(batch, family)
  if family == "electra":
    return _electra_losses(model, tensors, inputs, batch, sample_key)
  outputs = model(**inputs)
  if family == "gpt":
    losses = functional.cross_entropy(
      outputs.logits.transpose(1, 2), tensors["lm_ids"].long(), reduction="none"
    )
    losses_by_name = {"lm_loss": _weighted_mean(losses, tensors["lm_weights"])}
  else:
    logits = (
      outputs.prediction_logits
      if family in ("bert", "albert")
      else outputs.logits
    )
    losses_by_name = {"mlm_loss": _masked_lm_loss(logits, tensors)}
  if family in ("bert", "albert"):
    name, key = dict(
      bert=("nsp_loss", "seq_relationship_logits"),
      albert=("sop_loss", "sop_logits"),
    )[family]
    labels = tensors["pair_labels"][:, 0].long()
    losses_by_name[name] = functional.cross_entropy(outputs[key], labels)
  return losses_by_name | {"loss": sum(losses_by_name.values())}


def _electra_losses(model, tensors, inputs, batch, sample_key):
  discriminator, generator = model
  logits = generator(**inputs).logits
  losses_by_name = {"mlm_loss": _masked_lm_loss(logits, tensors)}
  slot_logits = _gather(logits, tensors["mlm_positions"]).detach().numpy()
  drawn_ids = electra.sample(jnp.asarray(slot_logits), sample_key, 1.0)
  ids_and_positions = (batch["input_ids"], batch["mlm_positions"])
  weights = batch["mlm_weights"]
  seen_ids, original_ids = (
    np.asarray(
      electra.write_ids(*map(jnp.asarray, (*ids_and_positions, ids, weights)))
    )
    for ids in (drawn_ids, batch["mlm_ids"])
  )
  inputs = inputs | {"input_ids": torch.tensor(seen_ids).long()}
  is_replaced = torch.from_numpy((seen_ids != original_ids).astype(np.float32))
  losses = functional.binary_cross_entropy_with_logits(
    discriminator(**inputs).logits, is_replaced, reduction="none"
  )
  losses_by_name["rtd_loss"] = _weighted_mean(
    losses, inputs["attention_mask"].float()
  )
  return losses_by_name | {
    # 50 is the weight of the discriminator's loss in ELECTRA's paper.
    "loss": losses_by_name["mlm_loss"] + 50.0 * losses_by_name["rtd_loss"]
  }


def train_reference(model, family, config, rates):
  """Trains a model of transformers; returns {name: loss} of each step.

  Args:
    model: the model that `write_reference` returned; it is trained in place.
    family: a key of `REFERENCES`.
    config: the run's config, which defines the batches.
    rates: the learning rate of each step.
  """
  modules = model if isinstance(model, tuple) else (model,)
  # A parameter that ELECTRA's two models share is given to the optimizer once.
  parameters = {
    id(parameter): parameter
    for module in modules
    for parameter in module.parameters()
  }
  optimizer = torch.optim.AdamW(parameters.values(), **ADAM)
  losses_by_step, key = [], jax.random.key(config["seed"])
  for step, batch in enumerate(batches_of_run(config)[: len(rates)]):
    # In bert_jax, the last of the three keys of a step draws these tokens.
    sample_key = jax.random.split(jax.random.fold_in(key, step), 3)[2]
    losses = reference_losses(model, family, batch, sample_key)
    optimizer.zero_grad()
    losses["loss"].backward()
    for group in optimizer.param_groups:
      group["lr"] = rates[step]
    optimizer.step()
    losses_by_step.append(
      {name: tensor.item() for name, tensor in losses.items()}
    )
  return losses_by_step


def add_piece(model, row, bias):
  """Adds one piece to a model's word table and head; returns the model.

  Args:
    model: the model that `write_reference` returned; it is changed in place.
    row: the vector of the new piece in the word table.
    bias: the new bias of the masked-LM head; None for a head without bias.
  """
  modules = model if isinstance(model, tuple) else (model,)
  for module in modules:
    new_vocab_size = module.config.vocab_size + 1
    module.resize_token_embeddings(new_vocab_size, mean_resizing=False)
  if len(modules) > 1:
    modules[1].electra.embeddings = modules[0].electra.embeddings
    modules[1].tie_weights()
  with torch.no_grad():
    for module in modules:
      module.get_input_embeddings().weight[-1] = torch.from_numpy(row.copy())
      if bias is not None:
        # Only the bias of the head has this shape.
        for parameter in module.parameters():
          if parameter.shape == (new_vocab_size,):
            parameter[-1] = float(bias)
  return model
