"""Holds the objects of a run, which `setup.build` makes for the loop."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax.corpus import reader
from bert_jax.devices import sharding
from bert_jax.devices.update_sharding import UpdateSharding
from bert_jax.examples import loader
from bert_jax.objectives.base import Objective
from bert_jax.tasks import batches
from bert_jax.tasks.encoded_rows import Task
from bert_jax.text.vocabulary import Vocabulary
from bert_jax.training import config as config_lib
from bert_jax.training import optim, phases
from bert_jax.training.state import TrainState


@dataclasses.dataclass(frozen=True, eq=False)
class PretrainedModel:
  """Holds a pre-trained model that was read from its files.

  Attributes:
    path: the model's folder, run or name, as in the run's config.
    config: the model's config; see weights/model_folder.py.
    arrays: path in the run's parameter tree, joined by "/", -> float32 array.
    data_pieces: the pieces of the data's vocabulary, in the order of their ids.
    vocabulary: the model's vocabulary; None if no array has a row for each
      piece.
    notes: lines to add to the report of `start_from.take_parameters`.
  """

  path: str
  config: dict[str, Any]
  arrays: Mapping[str, np.ndarray]
  data_pieces: Sequence[str] = ()
  vocabulary: Vocabulary | None = None
  notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Feed:
  """Holds a phase and its data.

  Attributes:
    phase: the phase.
    training_rows: the rows to train on.
    heldout: the rows to evaluate; None if the run never evaluates.
  """

  phase: phases.Phase
  training_rows: loader.PretrainingData | batches.TrainingSplit
  heldout: loader.Heldout | batches.Splits | None

  @property
  def shapes(self) -> sharding.BatchShapes:
    """The shapes of the phase's largest batch, with the rows of all hosts."""
    return sharding.batch_shapes(
      self.training_rows.features, self.phase.batch_size
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
  """Holds the objects that do not change during a run.

  Attributes:
    config: the config with the values that come from the data, from
      `init_from` and from the teacher.
    mesh: the mesh of the devices.
    feeds: the phases with their data, in order.
    objective: the objective.
    optimizer: the optimizer.
    schedule: step -> learning rate; steps are counted from 0.
    checkpoint_layout: the shapes and shardings of the arrays in a checkpoint.
    teacher_params: the teacher's parameters; {} if there is no teacher.
    update_sharding: the functions that gather parameters and split gradients,
      if the devices split the update; else None.
    teacher_digest: a digest of the teacher's parameters; None if there is no
      teacher.
    task: the task of a run that fine-tunes; None means pre-training.
    start_model: the model of `init_from`; None if `init_from` is empty, or if
      the run continues pre-training from its checkpoint.
  """

  config: config_lib.RunConfig
  mesh: Mesh
  feeds: list[Feed]
  objective: Objective
  optimizer: optax.GradientTransformation
  schedule: optim.Schedule
  checkpoint_layout: TrainState
  teacher_params: Any
  update_sharding: UpdateSharding | None
  teacher_digest: str | None
  task: Task | None = None
  start_model: PretrainedModel | None = None

  @property
  def data_folders(
    self,
  ) -> Sequence[reader.PreparedFolder | batches.TaskFolder]:
    """The folders of the first phase's data."""
    return self.feeds[0].training_rows.prepared_folders

  @property
  def fingerprints(self) -> list[str | None]:
    """The fingerprint of each folder of `data_folders`."""
    return [folder.meta["fingerprint"] for folder in self.data_folders]

  @property
  def accepted_fingerprints(self) -> list[list[str | None]]:
    """The lists of fingerprints that a checkpoint of these data may have.

    A checkpoint that an early version of bert_jax saved may have, instead of a
    task folder's fingerprint, a digest of the folder's training rows.
    """
    row_digests = [
      folder.meta.get(batches.ROWS_FINGERPRINT) for folder in self.data_folders
    ]
    return [self.fingerprints, row_digests]

  @property
  def mapped_folders(self) -> list[reader.PreparedFolder]:
    """The prepared folders of all phases, which are mapped into memory."""
    folders = [
      folder
      for feed in self.feeds
      for folder in feed.training_rows.prepared_folders
    ]
    return [f for f in folders if isinstance(f, reader.PreparedFolder)]
