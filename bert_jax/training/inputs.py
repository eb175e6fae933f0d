"""Opens the data of a run, `data.path`: a text or a task."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from bert_jax import hashing
from bert_jax.examples import loader
from bert_jax.messages import by_caller
from bert_jax.tasks import batches
from bert_jax.training import config as config_lib
from bert_jax.training import phases
from bert_jax.training.parts import Feed

T = TypeVar("T", config_lib.Evaluate, config_lib.Checkpoint)


def open_text(
  plan: Sequence[phases.Phase], seed: int, evaluate: config_lib.Evaluate
) -> list[Feed]:
  """Opens a stream of text and its held-out examples for each phase.

  Raises:
    ValueError: the data cannot be used, or do not fit the config.
  """
  feeds = []
  for phase in plan:
    # Each phase reads a new stream. Its seed differs from the other phases'
    # seeds, so that no phase repeats the examples of another phase.
    phase_seed = (
      hashing.make_key("phase", phase.index, seed) if phase.index else seed
    )
    stream = loader.open_data(seed=phase_seed, **phase.data_options)
    heldout = None
    if evaluate.every:
      limit = evaluate.examples or None
      try:
        heldout = loader.open_heldout(limit=limit, **phase.data_options)
      except ValueError as e:
        raise ValueError(
          f"held-out documents: {e}"
          f" {by_caller(_EVALUATION_FLAGS, _EVALUATION_PARAMETER)}."
        ) from e
    feeds.append(Feed(phase, stream, heldout))
  return feeds


# The remedy if no held-out documents can be evaluated: for the command, and for
# a Python function that prepares a text in its `workdir`.
_EVALUATION_FLAGS = (
  "Prepare the text with a larger --heldout, or pass --config.evaluate.every=0"
)
_EVALUATION_PARAMETER = (
  "Pass a larger heldout in a new workdir, or heldout=0 to evaluate nothing"
)


def open_task(
  config: config_lib.RunConfig,
) -> tuple[config_lib.RunConfig, batches.TrainingSplit, batches.Splits | None]:
  """Opens the split of a task to train on, and the splits to evaluate.

  Returns:
    A complete config, the split to train on, and the splits to evaluate (None
    if the run never evaluates). If `config` does not set the number of steps,
    or the steps between two evaluations or two checkpoints, the data decide
    them. The objective gets its kind, its labels and (for `finetune`) the id of
    the padding from the data.

  Raises:
    ValueError: the data cannot be used, or do not fit the config.
  """
  # In TinyBERT's stage "layers", the student copies hidden states and predicts
  # no labels.
  predicts_labels = config.objective.options().get("stage") != "layers"
  training_split = batches.open_task(
    config.batch_size, config.seed, **config.data.options()
  )
  splits = None
  if config.evaluate.every != 0:
    splits = batches.open_splits(training_split, predicts_labels)
  objective = dataclasses.replace(
    config.objective,
    kind=training_split.task.kind,
    labels=training_split.task.labels,
  )
  if objective.name == "finetune":
    padding_id = training_split.folder.meta["pad"]
    objective = dataclasses.replace(objective, padding_id=padding_id)
  config = dataclasses.replace(
    config,
    total_steps=config.total_steps or training_split.steps_of_all_epochs,
    evaluate=_with_epoch_interval(config.evaluate, training_split),
    checkpoint=_with_epoch_interval(config.checkpoint, training_split),
    objective=objective,
  )
  return config, training_split, splits


def _with_epoch_interval(
  section: T, training_split: batches.TrainingSplit
) -> T:
  """Returns the section; if `every` is None, it is set to once in an epoch."""
  if section.every is not None:
    return section
  return dataclasses.replace(section, every=training_split.steps_per_epoch)
