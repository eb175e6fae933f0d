"""The parts of a run: `setup.build` makes them, the loop reads them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax.corpus import reader
from bert_jax.devices import sharding
from bert_jax.examples import loader
from bert_jax.objectives.base import Objective
from bert_jax.tasks import batches
from bert_jax.tasks.encoded_rows import Task
from bert_jax.text.vocabulary import Vocabulary
from bert_jax.training import config as config_lib
from bert_jax.training import optim, phases
from bert_jax.training.state import TrainState


class Pretrained(NamedTuple):
  """A pre-trained model as it was read from its files.

  Attributes:
    path: the model's folder, run or name, as in the run's config.
    config: the model's config; see weights/model_folder.py.
    arrays: path in the run's parameter tree, joined by "/", -> float32 array.
    pieces: the pieces of the data's vocabulary, in the order of their ids.
    vocabulary: the model's own vocabulary; None if the run needs none.
    notes: lines for the report.
  """

  path: str
  config: dict[str, Any]
  arrays: Mapping[str, np.ndarray]
  pieces: Sequence[str] = ()
  vocabulary: Vocabulary | None = None
  notes: tuple[str, ...] = ()


class Feed(NamedTuple):
  """A phase with its data; the shapes are those of the largest batch."""

  phase: phases.Phase
  data: loader.PretrainingData | batches.TrainingSplit
  heldout: loader.Heldout | batches.Splits | None
  shapes: sharding.Shapes


class Setup(NamedTuple):
  """What `build` makes of a config.

  Attributes:
    config: the config with what data, `init_from` and teacher decide.
    in_file: shapes, see `state.file_state`.
    frozen: the teacher's parameters; {} without one.
    digest: the teacher's.
    task: the task of a run that fine-tunes.
    start_model: the model of `init_from`.
  """

  config: config_lib.Run
  mesh: Mesh
  feeds: list[Feed]
  objective: Objective
  optimizer: optax.GradientTransformation
  schedule: optim.Schedule
  in_file: TrainState
  frozen: Any
  digest: str | None
  task: Task | None = None
  start_model: Pretrained | None = None

  @property
  def prepared(self) -> tuple[reader.Prepared, ...]:
    return self.feeds[0].data.prepared

  @property
  def fingerprint(self) -> list[str]:
    return [folder.meta["fingerprint"] for folder in self.prepared]

  @property
  def fingerprints(self) -> list[list[str | None]]:
    """Fingerprints of checkpoints that may continue with this data.

    Checkpoints of earlier versions have a digest of a task's training rows.
    """
    row_digests = [folder.meta.get(batches.ROWS) for folder in self.prepared]
    return [self.fingerprint, row_digests]

  @property
  def read_on_the_way(self) -> list[reader.Prepared]:
    """The folders that are read from the disk during training."""
    folders = (folder for feed in self.feeds for folder in feed.data.prepared)
    return [f for f in folders if isinstance(f, reader.Prepared)]
