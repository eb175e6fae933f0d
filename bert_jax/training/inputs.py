"""Opens what a run trains on: the text or the task that `data.path` names."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from bert_jax import hashing
from bert_jax.examples import loader
from bert_jax.tasks import batches
from bert_jax.training import config as config_lib
from bert_jax.training import phases
from bert_jax.training.parts import Feed

T = TypeVar("T", config_lib.Evaluate, config_lib.Checkpoint)


def open_text(
  plan: Sequence[phases.Phase], seed: int, evaluate: config_lib.Evaluate
) -> list[Feed]:
  """Opens a stream of text and its held-out examples for each phase.

  Args:
    plan: the phases.
    seed: the run's seed.
    evaluate: the section of the config.

  Raises:
    ValueError: the data cannot be used, or do not fit the config.
  """
  feeds = []
  for phase in plan:
    # Each phase begins a new stream, so later phases need other seeds.
    phase_seed = (
      hashing.make_key("phase", phase.number, seed) if phase.number else seed
    )
    stream = loader.open_data(seed=phase_seed, **phase.data)
    heldout = None
    if evaluate.every:
      limit = evaluate.examples or None
      try:
        heldout = loader.open_heldout(limit=limit, **phase.data)
      except ValueError as e:
        raise ValueError(
          f"held-out documents: {e} Prepare the text with a larger --heldout,"
          " or pass --config.evaluate.every=0."
        ) from e
    feeds.append(Feed(phase, stream, heldout))
  return feeds


def open_task(
  config: config_lib.RunConfig,
) -> tuple[config_lib.RunConfig, batches.TrainingSplit, batches.Splits | None]:
  """Opens a task's rows to train on and its splits to evaluate.

  Returns:
    The config, the rows and the splits. The config has what the data decide:
    the number of steps, the steps between two evaluations and between two
    checkpoints, and the kind and labels of the objective. The splits are None
    if the run never evaluates.

  Raises:
    ValueError: the data cannot be used, or do not fit the config.
  """
  predicts = config.objective.options().get("stage") != "layers"
  rows = batches.open_task(
    config.batch_size, config.seed, **config.data.options()
  )
  splits = None
  if config.evaluate.every != 0:
    splits = batches.open_splits(rows, predicts)
  objective = dataclasses.replace(
    config.objective, kind=rows.task.kind, labels=rows.task.labels
  )
  if objective.name == "finetune":
    pad = rows.folder.meta["pad"]
    objective = dataclasses.replace(objective, padding_id=pad)
  config = dataclasses.replace(
    config,
    total_steps=config.total_steps or rows.steps_of_all_epochs,
    evaluate=_with_epoch_interval(config.evaluate, rows),
    checkpoint=_with_epoch_interval(config.checkpoint, rows),
    objective=objective,
  )
  return config, rows, splits


def _with_epoch_interval(section: T, rows: batches.TrainingSplit) -> T:
  """Returns a section in which one epoch replaces an `every` of None."""
  if section.every is not None:
    return section
  return dataclasses.replace(section, every=rows.steps_per_epoch)
