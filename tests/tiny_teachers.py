"""Writes small teachers with random parameters for tests."""

import pathlib

import numpy as np
from tiny_families import random_params

from bert_jax import models
from bert_jax.models import from_config, heads
from bert_jax.weights import model_folder

TEACHER_SIZES = dict(hidden=16, num_layers=4, heads=2, mlp=32, max_positions=34)


def write_teacher(path, prepared_folder, family="bert", seed=0, **sizes):
  """Writes a converted folder with a masked-LM head; returns its path.

  Args:
    path: the folder to write.
    prepared_folder: a prepared folder, whose vocabulary is copied.
    family: a key of `models.FAMILIES`.
    seed: the seed of the parameters.
    **sizes: sizes that replace or extend `TEACHER_SIZES`.
  """
  family_module = models.family(family)
  variant = next(iter(family_module.VARIANTS))
  vocab_content = pathlib.Path(prepared_folder, "vocab.txt").read_bytes()
  sizes = TEACHER_SIZES | dict(vocab_size=len(vocab_content.split())) | sizes
  encoder = family_module.build(variant, **sizes)
  module = heads.ForPreTraining(encoder, pairs=False)
  ids = np.ones((1, 2), np.int32)
  params = random_params(
    module, dict(input_ids=ids, mlm_positions=ids), seed=seed
  )
  config = model_folder.make_config(
    family,
    "pretraining",
    from_config.model_attributes(encoder),
    head={"pairs": False},
    source={"format": "test"},
  )
  weights = model_folder.Weights(
    config, model_folder.flatten(params), {"vocab.txt": vocab_content}
  )
  model_folder.write(str(path), weights)
  return str(path)
