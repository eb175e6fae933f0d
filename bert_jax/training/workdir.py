"""A run's folder: its lock, config.json and the tokenizer's files."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import jax

from bert_jax import files
from bert_jax.devices import hosts
from bert_jax.messages import UserError
from bert_jax.weights import checkpoint, run_config


@contextlib.contextmanager
def lock(workdir: str) -> Iterator[None]:
  """Holds the folder for this run.

  Raises:
    ValueError: another run holds it, it cannot be written, or it holds data.
  """
  if os.path.exists(os.path.join(workdir, "meta.json")):
    raise UserError(
      f"--workdir={workdir}: this is a prepared folder (it has a meta.json)"
      ", and a run would write over its vocab.txt; take another."
    )
  name = f"lock-{jax.process_index()}" if jax.process_index() else "lock"
  with contextlib.ExitStack() as stack:
    try:
      os.makedirs(workdir, exist_ok=True)
      stack.enter_context(files.locked(os.path.join(workdir, name)))
    except files.Locked as e:
      raise files.Locked(
        f"{workdir}: another run is going on in this folder; stop it, or take"
        " another --workdir."
      ) from e
    except OSError as e:
      raise UserError(
        f"--workdir={workdir}: no such folder can be made or written"
        f" ({e.strerror})."
      ) from e
    if not jax.process_index():
      files.clear_temporary(workdir)
    hosts.wait_for_all("lock")
    if not os.path.exists(os.path.join(workdir, "lock")):
      raise UserError(
        f"{workdir}: process 0 has another folder of this name; the --workdir"
        " must be on a file system that all hosts share."
      )
    yield


@contextlib.contextmanager
def named_errors(workdir: str) -> Iterator[None]:
  """Makes a sentence of what the system says of a file or the disk."""
  try:
    yield
  except OSError as e:
    if e.errno is None:
      raise
    raise OSError(
      f"{e.filename or workdir}: {e.strerror}. Once that is mended, the same"
      " command continues."
    ) from e


def write_workdir(
  workdir: str, config: dict[str, Any], tokenizer: dict[str, bytes]
) -> None:
  """Writes config.json and the tokenizer's files, on process 0 only."""
  if jax.process_index():
    return
  files.write_json(os.path.join(workdir, "config.json"), config)
  for name, content in tokenizer.items():
    files.write_atomically(os.path.join(workdir, name), content)


def config_before(workdir: str) -> dict[str, Any] | None:
  """Returns config.json of a run; None if the run has saved no checkpoint."""
  if not checkpoint.has_saved(workdir):
    return None
  return files.read_object(os.path.join(workdir, "config.json"))


def saved_config(
  workdir: str, saver: checkpoint.Checkpointer, default_values: dict[str, Any]
) -> dict[str, Any]:
  """Returns a run's config.json, with the model of its newest checkpoint.

  Prints a line for each value of config.json that was changed since that
  checkpoint was saved.

  Args:
    workdir: the run's folder.
    saver: the run's checkpoints.
    default_values: the values of keys that config.json lacks.
  """
  written = files.read_object(os.path.join(workdir, "config.json"))
  saved = saver.newest_config()
  if saved is None:
    return written
  for line in run_config.edits(written, saved, defaults=default_values):
    print(f"config.json was changed since it was written: {line}", flush=True)
  return run_config.with_saved_model(written, saved)


def print_changed_tokenizer(workdir: str, saved: dict[str, str] | None) -> None:
  """Prints which of the tokenizer's files differ from the checkpoint's.

  Args:
    workdir: the run's folder, with the tokenizer's files.
    saved: the digests of the files from the checkpoint's metadata.
  """
  for name in files.changed_files(saved or {}, workdir):
    print(f"{name} was changed or deleted, and is written anew", flush=True)
