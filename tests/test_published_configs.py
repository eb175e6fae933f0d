"""The published numbers, once more, beside those in configs/."""

import glob
import os

import flax.linen as nn
import jax
import numpy as np
import pytest

from bert_jax import main, objectives, phases
from bert_jax.models import bert

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Layers, width, heads and millions of parameters as published: the miniatures
# with both heads and to a tenth (Turc et al. 2019, table 1), base and large
# rounded to ten (Devlin et al. 2019, section 3).
SIZES = {
  "bert_tiny": (2, 128, 2, 4.4),
  "bert_mini": (4, 256, 4, 11.3),
  "bert_small": (4, 512, 8, 29.1),
  "bert_medium": (8, 512, 8, 41.7),
  "bert_base": (12, 768, 12, 110),
  "bert_large": (24, 1024, 16, 340),
  "bert_large_wwm": (24, 1024, 16, 340),
}

# Devlin et al. 2019, A.2; README, create_pretraining_data.py, modeling.py and
# optimization.py of google-research/bert.
RECIPE = {
  "total_steps": 1_000_000,
  "batch_size": 256,
  "model.max_positions": 512,
  "model.dropout": 0.1,
  "model.attention_dropout": 0.1,
  "model.activation": "gelu",
  "model.initializer_range": 0.02,
  "objective.name": "mlm",
  "objective.pairs": True,
  "data.builder": "bert_pairs",
  "data.mask_rate": 0.15,
  "data.short_probability": 0.1,
  "data.random_share": "published",
  "data.cased": False,
  "optimizer.name": "adamw_bert",
  "optimizer.b1": 0.9,
  "optimizer.b2": 0.999,
  "optimizer.epsilon": 1e-6,
  "optimizer.weight_decay": 0.01,
  "optimizer.clip_norm": 1.0,
  "schedule.name": "bert",
  "schedule.peak": 1e-4,
  "schedule.warmup": 0.01,
}


def load(name):
  return main.load_defaults(os.path.join(ROOT, "configs", f"{name}.py"))


def test_every_bert_config_is_in_the_table():
  files = glob.glob(os.path.join(ROOT, "configs", "bert_*.py"))
  names = {os.path.splitext(os.path.basename(path))[0] for path in files}
  assert names == set(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_numbers_are_the_published_ones(name):
  config = load(name)
  for key, published in RECIPE.items():
    value = config
    for part in key.split("."):
      value = value[part]
    assert value == published and type(value) is type(published), key
  masking = "whole_word" if name == "bert_large_wwm" else "token"
  assert config["data"]["masking"] == masking
  assert config["schedule"]["warmup"] * config["total_steps"] == 10_000
  first, second = phases.plan(config)
  assert (first.start, first.end, second.end) == (0, 900_000, 1_000_000)
  for phase, length, predictions in ((first, 128, 20), (second, 512, 80)):
    assert phase.batch_size == 256
    assert phase.data["length"] == length
    assert phase.data["max_predictions"] == predictions


@pytest.mark.parametrize("name", SIZES)
def test_parameters_are_as_many_as_published(name):
  """By shapes alone, to the last one with a vocabulary of 30,522."""
  layers, d, heads, millions = SIZES[name]
  config = load(name)
  model = bert.build(config["model"]["variant"])
  assert (model.num_layers, model.hidden, model.heads) == (layers, d, heads)

  v = 30_522
  objective = objectives.build(
    "mlm", config["model"] | {"vocab_size": v}, {"pairs": True}
  )
  ids = jax.ShapeDtypeStruct((1, 8), np.int32)
  one = jax.ShapeDtypeStruct((1, 1), np.int32)
  batch = dict(input_ids=ids, mlm_positions=one, cls_positions=one)
  shapes = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0), batch))
  count = sum(x.size for x in jax.tree.leaves(shapes))

  tables = (v + 512 + 2) * d + 2 * d
  attention = 4 * (d * d + d) + 2 * d
  mlp = d * 4 * d + 4 * d + 4 * d * d + d + 2 * d
  masked = d * d + d + 2 * d + v
  pairs = d * d + d + 2 * d + 2
  assert count == tables + layers * (attention + mlp) + masked + pairs
  if millions < 100:
    assert round(count / 1e6, 1) == millions
  else:
    assert round(count / 1e6, -1) == millions
