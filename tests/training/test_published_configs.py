"""Compares the configs with a list of published values."""

import pathlib

import flax.linen as nn
import jax
import pytest
from config_names import CONFIG_VALUES

from bert_jax import objectives
from bert_jax.cli import configs
from bert_jax.models import bert
from bert_jax.training import config as config_lib
from bert_jax.training import phases, topologies
from bert_jax.training import setup as building
from bert_jax.weights.run_config import flatten

ROOT = str(pathlib.Path(__file__).parents[2])

# Config -> the published numbers of layers, of units, of attention heads and of
# millions of parameters. The parameters of tiny to medium include both
# pre-training heads, and are rounded to a tenth of a million (Turc et al. 2019,
# table 1). The parameters of base and large are rounded to ten millions (Devlin
# et al. 2019, section 3).
BERT_SIZES = {
  "bert:tiny": (2, 128, 2, 4.4),
  "bert:mini": (4, 256, 4, 11.3),
  "bert:small": (4, 512, 8, 29.1),
  "bert:medium": (8, 512, 8, 41.7),
  "bert:base": (12, 768, 12, 110),
  "bert:large": (24, 1024, 16, 340),
  "bert:large_wwm": (24, 1024, 16, 340),
}

# The sources are Devlin et al. 2019, A.2, and README, modeling.py,
# create_pretraining_data.py and optimization.py of google-research/bert.
BERT_VALUES = {
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


def load_config(name):
  return configs.load_defaults(name)


def test_every_bert_config_is_in_the_table():
  names = {name for name in CONFIG_VALUES if name.startswith("bert:")}
  assert names == set(BERT_SIZES)


# In the dicts below, each with its sources above it, `warmup_steps` is
# schedule.warmup times `total_steps`.
NO_DROPOUT = {"model.dropout": 0.0, "model.attention_dropout": 0.0}
DROPOUT = {"model.dropout": 0.1, "model.attention_dropout": 0.1}
# Liu et al. 2019, Table 9; fairseq config/pretraining/base.yaml.
ROBERTA_VALUES = DROPOUT | {
  "batch_size": 8192,
  "total_steps": 500_000,
  "model.max_positions": 514,
  "model.activation": "gelu",
  "objective.pairs": False,
  "data.builder": "full_sentences",
  "data.length": 512,
  "data.mask_rate": 0.15,
  "data.masking": "token",
  "data.replacement": "roberta",
  "data.count": "stochastic",
  "data.static_masks": 0,
  "optimizer.name": "adamw_fairseq",
  "optimizer.b1": 0.9,
  "optimizer.b2": 0.98,
  "optimizer.epsilon": 1e-6,
  "optimizer.weight_decay": 0.01,
  "optimizer.clip_norm": 0.0,
  "schedule.name": "linear",
}
# Lan et al. 2020, section 4.1; google-research/albert README, optimization.py.
ALBERT_VALUES = {
  "batch_size": 4096,
  "warmup_steps": 3125,
  "model.activation": "gelu_new",
  "objective.pairs": True,
  "objective.pair_name": "sop",
  "data.builder": "albert_pairs",
  "data.length": 512,
  "data.max_predictions": 77,
  "data.short_probability": 0.1,
  "data.single": "split",
  "data.masking": "ngram",
  "data.replacement": "bert",
  "optimizer.name": "lamb",
  "optimizer.b1": 0.9,
  "optimizer.b2": 0.999,
  "optimizer.epsilon": 1e-6,
  "optimizer.weight_decay": 0.01,
  "optimizer.clip_norm": 1.0,
  "schedule.name": "bert",
  "schedule.peak": 0.00176,
}
# Clark et al. 2020, Table 6; google-research/electra configure_pretraining.py.
ELECTRA_VALUES = DROPOUT | {
  "warmup_steps": 10_000,
  "model.activation": "gelu",
  "objective.discriminator_weight": 50.0,
  "objective.temperature": 1.0,
  "data.builder": "electra_segments",
  "data.masking": "token",
  "data.replacement": "electra",
  "data.count": "round_single",
  "data.repeat_positions": False,
  "optimizer.name": "adamw_bert",
  "optimizer.b2": 0.999,
  "optimizer.epsilon": 1e-6,
  "optimizer.weight_decay": 0.01,
  "optimizer.clip_norm": 1.0,
  "schedule.name": "electra",
}
# facebookresearch/SpanBERT pretraining/README.md.
SPANBERT_VALUES = DROPOUT | {
  "batch_size": 256,
  "total_steps": 2_400_000,
  "warmup_steps": 10_000,
  "objective.pairs": False,
  "objective.span_boundary": True,
  "data.builder": "doc_sentences",
  "data.length": 512,
  "data.mask_rate": 0.15,
  "data.masking": "span",
  "data.replacement": "unigram",
  "data.count": "ceil",
  "data.cased": True,
  "optimizer.name": "adamw_fairseq",
  "optimizer.b2": 0.999,
  "optimizer.epsilon": 1e-8,
  "optimizer.weight_decay": 0.01,
  "optimizer.clip_norm": 1.0,
  "schedule.name": "linear",
  "schedule.peak": 1e-4,
}
# Sanh et al. 2019; huggingface/transformers research_projects/distillation.
DISTILBERT_VALUES = DROPOUT | {
  "batch_size": 4096,
  "model.activation": "gelu",
  "teacher.model.family": "bert",
  "teacher.model.variant": "base",
  "objective.layers": (0, 2, 4, 7, 9, 11),
  "objective.kl_weight": 5.0,
  "objective.mlm_weight": 2.0,
  "objective.cosine_weight": 1.0,
  "objective.temperature": 2.0,
  "objective.kl_tokens": "all",
  "objective.freeze_positions": True,
  "data.builder": "doc_sentences",
  "data.length": 512,
  "data.max_predictions": 77,
  "data.mask_rate": 0.15,
  "data.smoothing": 0.7,
  "data.replacement": "bert",
  "data.count": "ceil_all",
  "optimizer.name": "adamw",
  "optimizer.b1": 0.9,
  "optimizer.b2": 0.98,
  "optimizer.epsilon": 1e-6,
  "optimizer.weight_decay": 0.0,
  "optimizer.clip_norm": 5.0,
  "schedule.name": "linear",
  "schedule.peak": 5e-4,
  "schedule.warmup": 0.05,
}
# Jiao et al. 2020, section 4.2; huawei-noah/Pretrained-Language-Model TinyBERT.
TINYBERT_VALUES = DROPOUT | {
  "batch_size": 256,
  "warmup_steps": 10_000,
  "model.activation": "gelu",
  "teacher.model.family": "bert",
  "teacher.model.variant": "base",
  "objective.maps": "shared",
  "objective.attention_weight": 1.0,
  "objective.hidden_weight": 1.0,
  "objective.embedding_weight": 1.0,
  "data.builder": "bert_pairs",
  "data.length": 128,
  "data.short_probability": 0.1,
  "optimizer.name": "adamw_bert",
  "optimizer.b2": 0.999,
  "optimizer.weight_decay": 0.01,
  "optimizer.clip_norm": 1.0,
  "schedule.peak": 1e-4,
}


def electra_values(
  batch_size, length, max_predictions, mask_rate, peak, total_steps
):
  return ELECTRA_VALUES | {
    "batch_size": batch_size,
    "data.length": length,
    "data.max_predictions": max_predictions,
    "data.mask_rate": mask_rate,
    "schedule.peak": peak,
    "total_steps": total_steps,
  }


PUBLISHED_VALUES = {
  "roberta:base": ROBERTA_VALUES
  | {"schedule.peak": 6e-4, "warmup_steps": 24_000},
  "roberta:large": ROBERTA_VALUES
  | {"schedule.peak": 4e-4, "warmup_steps": 30_000},
  "albert:base_v1": ALBERT_VALUES | DROPOUT | {"total_steps": 125_000},
  "albert:large_v1": ALBERT_VALUES | DROPOUT | {"total_steps": 125_000},
  "albert:xlarge_v1": ALBERT_VALUES | DROPOUT | {"total_steps": 125_000},
  "albert:xxlarge_v1": ALBERT_VALUES | NO_DROPOUT | {"total_steps": 1_500_000},
  "albert:base_v2": ALBERT_VALUES | NO_DROPOUT | {"total_steps": 10_000_000},
  "albert:large_v2": ALBERT_VALUES | NO_DROPOUT | {"total_steps": 3_000_000},
  "albert:xlarge_v2": ALBERT_VALUES | NO_DROPOUT | {"total_steps": 3_000_000},
  "albert:xxlarge_v2": ALBERT_VALUES | NO_DROPOUT | {"total_steps": 3_000_000},
  "electra:small": electra_values(
    batch_size=128,
    length=128,
    max_predictions=19,
    mask_rate=0.15,
    peak=5e-4,
    total_steps=1_000_000,
  ),
  "electra:base": electra_values(
    batch_size=256,
    length=512,
    max_predictions=79,
    mask_rate=0.15,
    peak=2e-4,
    total_steps=766_000,
  ),
  "electra:large": electra_values(
    batch_size=2048,
    length=512,
    max_predictions=130,
    mask_rate=0.25,
    peak=2e-4,
    total_steps=400_000,
  ),
  "spanbert:base": SPANBERT_VALUES,
  "spanbert:large": SPANBERT_VALUES,
  "distilbert:base": DISTILBERT_VALUES,
  "tinybert:4x312": TINYBERT_VALUES,
  "tinybert:6x768": TINYBERT_VALUES,
  # Radford et al. 2018, section 4.1; openai/finetune-transformer-lm train.py.
  "gpt:gpt1": DROPOUT
  | {
    "batch_size": 64,
    "warmup_steps": 2000,
    "model.activation": "gelu_new",
    "data.builder": "lm",
    "data.length": 512,
    "optimizer.name": "adamw",
    "optimizer.b2": 0.999,
    "optimizer.epsilon": 1e-8,
    "optimizer.weight_decay": 0.01,
    "schedule.name": "cosine",
    "schedule.peak": 2.5e-4,
  },
}
# Config -> the encoder's numbers of layers, units, pieces, positions and
# segments. The encoders that project their embeddings are left out.
ENCODER_SIZES = {
  "roberta:base": (12, 768, 50265, 514, 1),
  "roberta:large": (24, 1024, 50265, 514, 1),
  "spanbert:base": (12, 768, 28996, 512, 2),
  "spanbert:large": (24, 1024, 28996, 512, 2),
  "gpt:gpt1": (12, 768, 40478, 512, 0),
}


@pytest.mark.parametrize("name", PUBLISHED_VALUES)
def test_configs_have_the_published_values(name):
  config = load_config(name)
  config_lib.parse(config)
  flat_config = flatten(config)
  schedule = config["schedule"]
  flat_config["warmup_steps"] = round(
    schedule["warmup"] * config["total_steps"]
  )
  for key, published_value in PUBLISHED_VALUES[name].items():
    assert flat_config[key] == published_value, key
    assert type(flat_config[key]) is type(published_value), key
  family, _, variant = name.partition(":")
  family = {"spanbert": "bert"}.get(family, family)
  assert flat_config["model.family"] == family
  assert flat_config["model.variant"] == (
    variant if name != "gpt:gpt1" else "base"
  )
  assert flat_config["model.initializer_range"] == 0.02


SMALL_CONFIGS = sorted(
  name for name in CONFIG_VALUES if name.startswith("small:")
)


@pytest.mark.parametrize("name", [*PUBLISHED_VALUES, *SMALL_CONFIGS])
def test_the_builder_gives_what_the_objective_needs(name):
  """Initializes an objective with the batch shapes of its builder.

  The batch must have every key that the objective needs. The models of
  `ENCODER_SIZES` must have the expected number of parameters.
  """
  config = topologies.with_published_vocabulary(
    config_lib.parse(load_config(name))
  )
  (phase,) = phases.plan(config)
  objective, _, _ = building.make_objective_and_optimizer(config)
  batch = topologies.batch_shapes(config.model.vocab_size, phase)
  shapes = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0), batch))
  if name in ENCODER_SIZES:
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert num_parameters == count_parameters(name, *ENCODER_SIZES[name])
  divisors = jax.eval_shape(objective.divisors, batch)
  assert set(objective.coefficients) <= set(divisors)
  assert objective.flops(batch) > 0


def count_parameters(
  name, num_layers, width, vocab_size, num_positions, num_segments
):
  """Returns a model's number of parameters, with those of its heads."""
  norm = 2 * width
  attention = 4 * (width * width + width) + norm
  mlp = width * 4 * width + 4 * width + 4 * width * width + width + norm
  tables = (vocab_size + num_positions + num_segments) * width
  num_parameters = tables + num_layers * (attention + mlp)
  if name == "gpt:gpt1":
    return num_parameters
  num_parameters += norm + width * width + width + norm + vocab_size
  if name.startswith("spanbert"):
    span_dense = (2 * width + 200) * width + width + norm
    num_parameters += (
      15 * 200 + span_dense + width * width + width + norm + vocab_size
    )
  return num_parameters


@pytest.mark.parametrize("name", BERT_SIZES)
def test_bert_configs_have_the_published_values(name):
  config = load_config(name)
  for key, published_value in BERT_VALUES.items():
    setting = config
    for name_on_path in key.split("."):
      setting = setting[name_on_path]
    assert setting == published_value and type(setting) is type(
      published_value
    ), key
  masking = "whole_word" if name == "bert:large_wwm" else "token"
  assert config["data"]["masking"] == masking
  assert config["schedule"]["warmup"] * config["total_steps"] == 10_000
  first_phase, second_phase = phases.plan(config_lib.parse(config))
  assert (first_phase.start, first_phase.end, second_phase.end) == (
    0,
    900_000,
    1_000_000,
  )
  for phase, length, max_predictions in (
    (first_phase, 128, 20),
    (second_phase, 512, 80),
  ):
    assert phase.batch_size == 256
    assert phase.data_options["length"] == length
    assert phase.data_options["max_predictions"] == max_predictions


@pytest.mark.parametrize("name", BERT_SIZES)
def test_bert_configs_have_the_published_numbers_of_parameters(name):
  """The vocabulary has 30,522 pieces, as in the published models."""
  num_layers, hidden, num_heads, num_millions = BERT_SIZES[name]
  config = load_config(name)
  encoder = bert.build(config["model"]["variant"])
  assert (encoder.num_layers, encoder.hidden, encoder.heads) == (
    num_layers,
    hidden,
    num_heads,
  )

  vocab_size = 30_522
  objective = objectives.build(
    "mlm", config["model"] | {"vocab_size": vocab_size}, {"pairs": True}
  )
  run_config = topologies.with_published_vocabulary(config_lib.parse(config))
  batch = topologies.batch_shapes(
    run_config.model.vocab_size, phases.plan(run_config)[0]
  )
  shapes = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0), batch))
  num_parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes))

  tables = (vocab_size + 512 + 2) * hidden + 2 * hidden
  attention = 4 * (hidden * hidden + hidden) + 2 * hidden
  mlp = (
    hidden * 4 * hidden + 4 * hidden + 4 * hidden * hidden + hidden + 2 * hidden
  )
  masked_head = hidden * hidden + hidden + 2 * hidden + vocab_size
  pair_head = hidden * hidden + hidden + 2 * hidden + 2
  assert (
    num_parameters
    == tables + num_layers * (attention + mlp) + masked_head + pair_head
  )
  if num_millions < 100:
    assert round(num_parameters / 1e6, 1) == num_millions
  else:
    assert round(num_parameters / 1e6, -1) == num_millions
