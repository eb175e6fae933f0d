"""Settings that several configs share, and `merge`, which makes a config.

A section is a dict of settings.

`unset(int)` means that the data, the start model or the teacher decides the
value.
"""

import copy
import difflib
from collections.abc import Iterable
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder as unset

RUN = dict(
  seed=0,
  micro_batches=1,
  phases={},
  init_from="",  # the path of a pre-trained model
  init_new_rows="mean",
  spike=dict(action="none", factor=2.0),
  mesh=dict(data=-1, fsdp=1, tensor=1, split_update="auto"),
  profile=dict(start=0, steps=0),
)
# How a model of any family computes.
COMPUTE = dict(
  dtype="bfloat16",
  attention="auto",
  elementwise="auto",
  products="auto",
  unroll=0,
  remat=False,
)
ADAM = dict(b1=0.9, b2=0.999, epsilon=1e-6, weight_decay=0.01, clip_norm=1.0)

# Configs for pre-training begin with these values of Devlin et al. 2019.
PRETRAIN = dict(
  batch_size=256,
  model=COMPUTE
  | dict(
    variant="base",
    vocab_size=unset(int),  # from the vocabulary of the data
    max_positions=512,
    dropout=0.1,
    attention_dropout=0.1,
    activation="gelu",
    initializer_range=0.02,
  ),
  objective=dict(name="mlm"),
  data=dict(path="", max_sequences=1, cased=False),
  optimizer=dict(name="adamw_bert") | ADAM,
  schedule=dict(name="bert", peak=1e-4, warmup=0.01),
  log=dict(every=100),
  evaluate=dict(every=10_000, examples=10_000),
  checkpoint=dict(every=5_000, keep=2, keep_best=1),
)
# The settings of rows with masked tokens.
MASKED = dict(data=dict(mask_rate=0.15, masking="token", static_masks=0))

# Configs of tasks begin with these values of Devlin et al. 2019, section 4.1.
TASK = dict(
  total_steps=unset(int),  # from data.epochs and the training rows
  batch_size=32,
  model=COMPUTE
  | dict(  # from the model of init_from
    family=unset(str),
    variant=unset(str),
    vocab_size=unset(int),
    dropout=unset(float),
    attention_dropout=unset(float),
  ),
  objective=dict(
    name="finetune",
    head="new",
    head_dropout=unset(float),  # from the family
    lm_weight=0.0,
    span_positions="all",
    train_padding=False,
    span_head="apart",
  ),
  data=dict(
    path="",
    train="train",
    validation="validation",
    epochs=3.0,
    shuffle=True,
    group=True,  # rows of similar length together, which is faster
    buckets=(16, 32, 48, 64, 96, 128),
  ),
  optimizer=dict(name="adamw", layer_decay=1.0, layer_rule="released") | ADAM,
  schedule=dict(name="bert", peak=2e-5, warmup=0.1),
  log=dict(every=20),
  evaluate=dict(every=unset(int)),  # once an epoch
  checkpoint=dict(every=unset(int), keep=1, keep_best=1),
)
# The next three sections change `TASK` to the published settings of other
# families. `FAIRSEQ` is for RoBERTa.
FAIRSEQ = dict(
  optimizer=dict(name="adamw_fairseq", b2=0.98, weight_decay=0.1, clip_norm=0.0)
)
# `ELECTRA` is for the sizes small and base; large has peak=5e-5 and
# layer_decay=0.9.
ELECTRA = dict(
  schedule=dict(name="electra", peak=1e-4), optimizer=dict(layer_decay=0.8)
)
GPT1 = dict(
  schedule=dict(name="linear", peak=6.25e-5, warmup=0.002),
  objective=dict(lm_weight=0.5),
  data=dict(epochs=3.0),
)


def merge(*sections: dict[str, Any]) -> ConfigDict:
  """Returns a config: `RUN`, and each section overrides the ones before it."""
  config: dict[str, Any] = {}
  for section in (RUN, *sections):
    _merge_into(config, section)
  return ConfigDict(config)


def _merge_into(config: dict[str, Any], section: dict[str, Any]) -> None:
  for key, entry in section.items():
    if isinstance(entry, dict) and isinstance(config.get(key), dict):
      _merge_into(config[key], entry)
    else:
      config[key] = copy.deepcopy(entry)


def steps_and_peak(total: int, warmup: int, peak: float) -> dict[str, Any]:
  """Returns the settings of a run's length and learning rate.

  Args:
    total: the number of steps of the run.
    warmup: the number of steps in which the rate rises.
    peak: the highest learning rate.
  """
  schedule = dict(warmup=warmup / total, peak=peak)
  return dict(total_steps=total, schedule=schedule)


def check_name(name: str, names: Iterable[str]) -> str:
  """Returns `name` if it is one of `names`.

  Raises:
    ValueError: the name is not one of `names`. The message lists `names`; the
      most similar name comes first.
  """
  names = list(names)
  if name in names:
    return name

  def likeness(candidate: str) -> float:
    return difflib.SequenceMatcher(None, name, candidate).ratio()

  nearest = ", ".join(sorted(names, key=likeness, reverse=True))
  raise ValueError(f"{name!r} is not a name of this file; choose {nearest}.")
