"""Pre-training that goes on from a model of transformers, beside transformers.

The reference trains transformers' classes with torch's AdamW on the very
batches that the run reads, in float32, without dropout.
"""

import json
import os

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

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
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
# Family -> transformers' class, its sizes, a published config of ours.
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
# The generator's sizes; its heads are 64 wide if there are several.
GENERATOR = dict(hidden_size=8, num_attention_heads=1, intermediate_size=32)
_MORE = {
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


def write(path, family, vocabulary, vocab_size=64, seed=0):
  """Writes a random model of transformers; ELECTRA's two, each in a folder.

  Args:
    path: the new folder.
    family: a key of `REFERENCES`.
    vocabulary: the vocab.txt to copy.
    vocab_size: rows of the word table.
    seed: seed of the parameters.

  Returns:
    The model, or of ELECTRA the pair of discriminator and generator, which
    share their embeddings.
  """
  name, sizes, _ = REFERENCES[family]
  made = build(name, sizes | dict(vocab_size=vocab_size), seed)
  os.makedirs(path)
  with open(vocabulary, "rb") as f:
    content = f.read()
  with open(os.path.join(path, "vocab.txt"), "wb") as f:
    f.write(content)
  if family != "electra":
    made.save_pretrained(path)
    return made
  sizes = sizes | GENERATOR | dict(vocab_size=vocab_size)
  generator = build("ElectraForMaskedLM", sizes, seed + 1)
  generator.electra.embeddings = made.electra.embeddings
  generator.tie_weights()
  made.save_pretrained(os.path.join(path, "discriminator"))
  generator.save_pretrained(os.path.join(path, "generator"))
  return made, generator


def build(name, sizes, seed=0):
  """A random model of a class, in which nothing is trivial."""
  cls = getattr(transformers, name)
  torch.manual_seed(seed)
  made = cls(cls.config_class(**sizes, attn_implementation="eager")).eval()
  with torch.no_grad():
    for key, parameter in made.named_parameters():
      norm = "norm" in key.lower() or ".ln_" in key
      weight = norm and key.endswith("weight")
      parameter.normal_(1.0 if weight else 0.0, 0.2)
  return made


def config_of(family, prepared, model, **changes):
  """A published config that goes on from `model`; its sizes are the model's."""
  config = configs.load_defaults(REFERENCES[family][2])
  values = {
    "init_from": str(model),
    "data.path": str(prepared),
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
  for key, value in (values | _MORE.get(family, {}) | changes).items():
    section = config
    *parts, last = key.split(".")
    for part in parts:
      section = section[part]
    if value is None:
      section.pop(last, None)
    else:
      section[last] = value
  config_lib.parse(config)
  return config


def ours(config, workdir):
  """Runs a config; returns rows of metrics.jsonl, and the config as it ran."""
  train.run(config, str(workdir))
  rows = logging.read_rows(os.path.join(workdir, "metrics.jsonl"))
  with open(os.path.join(workdir, "config.json"), encoding="utf-8") as f:
    config = json.load(f)
  return [row for row in rows if row["split"] == "train"], config


def batches(config):
  """The batches of a run's steps, as numpy arrays."""
  data = loader.open_data(seed=config["seed"], **config["data"])
  rows = config["batch_size"]
  return [data.read(i * rows, rows) for i in range(config["total_steps"])]


def _tensors(batch, family):
  made = {k: torch.from_numpy(np.asarray(v)) for k, v in batch.items()}
  inputs = dict(
    input_ids=made["input_ids"].long(),
    attention_mask=(made["sequence_ids"] > 0).long(),
  )
  if "segment_ids" in made:
    inputs["token_type_ids"] = made["segment_ids"].long()
  if family in ("roberta", "distilbert"):
    inputs.pop("token_type_ids", None)
  return made, inputs


def _at(hidden, positions):
  """[b, l, d] -> [b, m, d]."""
  return torch.stack(
    [x[p] for x, p in zip(hidden, positions.long(), strict=True)]
  )


def _mean(losses, weights):
  return (losses * weights).sum() / weights.sum()


def _masked(logits, made):
  logits = _at(logits, made["mlm_positions"])
  losses = functional.cross_entropy(
    logits.transpose(1, 2), made["mlm_ids"].long(), reduction="none"
  )
  return _mean(losses, made["mlm_weights"])


def loss(model, family, batch, noise):
  """{name: loss} of a batch, "loss" the sum that is trained.

  Args:
    model: the model that `write` returned.
    family: a key of `REFERENCES`.
    batch: numpy arrays of the run's batch.
    noise: the key of ELECTRA's samples in this step.
  """
  made, inputs = _tensors(batch, family)
  if family == "electra":
    return _electra(model, made, inputs, batch, noise)
  out = model(**inputs)
  if family == "gpt":
    losses = functional.cross_entropy(
      out.logits.transpose(1, 2), made["lm_ids"].long(), reduction="none"
    )
    found = {"lm_loss": _mean(losses, made["lm_weights"])}
  else:
    logits = (
      out.prediction_logits if family in ("bert", "albert") else out.logits
    )
    found = {"mlm_loss": _masked(logits, made)}
  if family in ("bert", "albert"):
    name, key = dict(
      bert=("nsp_loss", "seq_relationship_logits"),
      albert=("sop_loss", "sop_logits"),
    )[family]
    labels = made["pair_labels"][:, 0].long()
    found[name] = functional.cross_entropy(out[key], labels)
  return found | {"loss": sum(found.values())}


def _electra(model, made, inputs, batch, noise):
  discriminator, generator = model
  logits = generator(**inputs).logits
  found = {"mlm_loss": _masked(logits, made)}
  slots = _at(logits, made["mlm_positions"]).detach().numpy()
  drawn = electra.sample(jnp.asarray(slots), noise, 1.0)
  slots = (batch["input_ids"], batch["mlm_positions"])
  used = batch["mlm_weights"]
  seen, original = (
    np.asarray(electra.write_ids(*map(jnp.asarray, (*slots, ids, used))))
    for ids in (drawn, batch["mlm_ids"])
  )
  inputs = inputs | {"input_ids": torch.tensor(seen).long()}
  replaced = torch.from_numpy((seen != original).astype(np.float32))
  losses = functional.binary_cross_entropy_with_logits(
    discriminator(**inputs).logits, replaced, reduction="none"
  )
  found["rtd_loss"] = _mean(losses, inputs["attention_mask"].float())
  return found | {"loss": found["mlm_loss"] + 50.0 * found["rtd_loss"]}


def theirs(model, family, config, rates):
  """Trains a model of transformers; returns {name: loss} of each step.

  Args:
    model: the model that `write` returned; it is trained in place.
    family: a key of `REFERENCES`.
    config: the run's, for its batches.
    rates: learning rates of the steps, one for each step that is wanted.
  """
  modules = model if isinstance(model, tuple) else (model,)
  # The parameters that ELECTRA's towers share are one parameter here.
  parameters = {id(p): p for m in modules for p in m.parameters()}
  optimizer = torch.optim.AdamW(parameters.values(), **ADAM)
  rows, key = [], jax.random.key(config["seed"])
  for step, batch in enumerate(batches(config)[: len(rates)]):
    noise = jax.random.split(jax.random.fold_in(key, step), 3)[2]
    losses = loss(model, family, batch, noise)
    optimizer.zero_grad()
    losses["loss"].backward()
    for group in optimizer.param_groups:
      group["lr"] = rates[step]
    optimizer.step()
    rows.append({name: value.item() for name, value in losses.items()})
  return rows


def lengthen(model, row, bias):
  """A model of `write` with one piece more.

  Args:
    model: the model that `write` returned; it is trained in place.
    row: the new row of the word table.
    bias: the new number of the masked-LM head; None where there is none.
  """
  modules = model if isinstance(model, tuple) else (model,)
  for module in modules:
    size = module.config.vocab_size + 1
    module.resize_token_embeddings(size, mean_resizing=False)
  if len(modules) > 1:
    modules[1].electra.embeddings = modules[0].electra.embeddings
    modules[1].tie_weights()
  with torch.no_grad():
    for module in modules:
      module.get_input_embeddings().weight[-1] = torch.from_numpy(row.copy())
      if bias is not None:
        for parameter in module.parameters():
          if parameter.shape == (size,):
            parameter[-1] = float(bias)
  return model
