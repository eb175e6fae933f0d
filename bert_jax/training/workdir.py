"""Locks a run's folder, and writes its config.json and tokenizer's files."""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
from etils import epath

from bert_jax import files
from bert_jax.devices import hosts
from bert_jax.messages import UserError, same_call, say
from bert_jax.weights import checkpoint, run_config


@contextlib.contextmanager
def lock(workdir: str) -> Iterator[None]:
  """Makes a run's folder, and keeps other runs out of it during the block.

  Args:
    workdir: the run's folder, on a file system that can lock files.

  Raises:
    UserError: another run holds the folder, the folder cannot be written, the
      folder is a prepared folder, or the hosts do not share the folder.
  """
  folder = pathlib.Path(workdir)
  if (folder / "meta.json").exists():
    raise UserError(
      f"workdir={workdir}: this is a prepared folder (it has a meta.json)"
      ", and a run would write over its vocab.txt; take another workdir."
    )
  lock_name = f"lock-{jax.process_index()}" if jax.process_index() else "lock"
  with contextlib.ExitStack() as stack:
    try:
      folder.mkdir(parents=True, exist_ok=True)
      stack.enter_context(files.hold_lock(folder / lock_name))
    except files.LockHeld as e:
      raise files.LockHeld(
        f"{workdir}: another run is going on in this folder; stop it, or take"
        " another workdir."
      ) from e
    except OSError as e:
      raise UserError(
        f"workdir={workdir} cannot be made or written ({e.strerror})."
      ) from e
    if not jax.process_index():
      files.delete_temporary_files(folder)
    hosts.wait_for_all("lock")
    # "lock" is the file of process 0.
    if not (folder / "lock").exists():
      raise UserError(
        f"{workdir}: process 0 has another folder of this name; the workdir"
        " must be on a file system that all hosts share."
      )
    yield


@contextlib.contextmanager
def add_file_to_errors(workdir: str) -> Iterator[None]:
  """Adds a file's name and a remedy to each OSError that the block raises.

  Args:
    workdir: the run's folder, which is named if the error names no file.
  """
  try:
    yield
  except OSError as e:
    if e.errno is None:
      raise
    raise OSError(
      f"{e.filename or workdir}: {e.strerror}. Once that is mended,"
      f" {same_call()} continues."
    ) from e


def write_config_and_tokenizer(
  workdir: str, config: dict[str, Any], tokenizer: dict[str, bytes]
) -> None:
  """Writes config.json and the tokenizer's files; only process 0 writes.

  Args:
    workdir: the run's folder.
    config: the content of config.json.
    tokenizer: name -> content of each tokenizer file.
  """
  if jax.process_index():
    return
  folder = pathlib.Path(workdir)
  files.write_json(folder / "config.json", config)
  for file_name, content in tokenizer.items():
    files.write_atomically(folder / file_name, content)


def read_config_if_resumed(workdir: str) -> dict[str, Any] | None:
  """Reads a run's config.json; None if the run has saved no checkpoint."""
  if not checkpoint.has_checkpoint(workdir):
    return None
  return files.read_json_object(epath.Path(workdir) / "config.json")


def read_saved_config(
  workdir: str, saver: checkpoint.Checkpointer, default_values: dict[str, Any]
) -> dict[str, Any]:
  """Reads a run's config.json, with the model keys of its newest checkpoint.

  Prints a line for each value of config.json that was changed since that
  checkpoint was saved.

  Args:
    workdir: the run's folder.
    saver: the run's checkpoints.
    default_values: the values of keys that config.json lacks.
  """
  written_config = files.read_json_object(epath.Path(workdir) / "config.json")
  checkpoint_config = saver.newest_config()
  if checkpoint_config is None:
    return written_config
  for line in run_config.list_changes(
    written_config, checkpoint_config, defaults=default_values
  ):
    say(f"config.json was changed after the last checkpoint: {line}")
  return run_config.with_saved_model_keys(written_config, checkpoint_config)


def print_changed_tokenizer(
  workdir: str, saved_digests: dict[str, str] | None
) -> None:
  """Prints which tokenizer files have changed since the checkpoint was saved.

  Args:
    workdir: the run's folder, with the tokenizer's files.
    saved_digests: name -> digest of each file, from the checkpoint's metadata;
      None if the run starts without a checkpoint.
  """
  for file_name in files.changed_files(saved_digests or {}, workdir):
    say(f"{file_name} was changed or deleted, and is written again")
