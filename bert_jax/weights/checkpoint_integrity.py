"""Whether a checkpoint fits the model, and is what was saved: checksums."""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import files
from bert_jax.text import open_vocabulary as vocabulary_files
from bert_jax.weights import run_config


class Mismatch(ValueError):
  """A whole checkpoint that is not for this model or program."""


class Damaged(ValueError):
  """A checkpoint that cannot be read, or reads otherwise than it was saved."""


def paths(tree: Any) -> dict[str, Any]:
  """{"params/encoder/...": leaf} of a tree of arrays, shapes or metadata."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {
    "/".join(
      str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k))))
      for k in path
    ): leaf
    for path, leaf in leaves
  }


def _describe(tree: Any) -> dict[str, tuple[tuple[int, ...], str]]:
  """{path: (shape, dtype)} of a tree of arrays, shapes or orbax metadata."""
  return {
    path: (tuple(leaf.shape), str(leaf.dtype))
    for path, leaf in paths(tree).items()
  }


def check_same(saved: Any, wanted: Any, source: str) -> None:
  """Raises Mismatch unless both trees have the same paths, shapes, dtypes.

  Orbax's partial restore and `strict=False` would silently keep, pad or cut
  what does not match.
  """
  saved, wanted = _describe(saved), _describe(wanted)
  problems = (
    [f"{path} is missing" for path in wanted if path not in saved]
    + [f"{path} is not in the model" for path in saved if path not in wanted]
    + [
      f"{path} is {saved[path]}, the model's {wanted[path]}"
      for path in wanted
      if path in saved and saved[path] != wanted[path]
    ]
  )
  if problems:
    # The optimizer's moments only repeat what is wrong with the parameters.
    problems.sort(key=lambda problem: problem.startswith("opt_state"))
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    raise Mismatch(
      f"{source} does not fit this model: {'; '.join(problems[:3])}{more}."
    )


def checksum(x: jax.Array) -> jax.Array:
  """A uint32 sum over all elements' bits, each times an odd number of its own.

  Any single changed element changes it; it is the same on every mesh.
  """
  if x.dtype.itemsize == 4:
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  else:
    bits = x.astype(jnp.uint32)
  factor = jnp.zeros(x.shape, jnp.uint32)
  for axis in range(x.ndim):
    index = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    factor = factor * np.uint32(0x9E3779B1) + index
  return (bits * (2 * factor + 1)).sum(dtype=jnp.uint32)


@jax.jit
def _checksums(leaves: list[jax.Array]) -> list[jax.Array]:
  return [checksum(x) for x in leaves]


def checksums(tree: Any) -> dict[str, int]:
  """{path: checksum} of a tree of arrays of 32 bits or less an element."""
  named = paths(tree)
  sums = jax.device_get(_checksums(list(named.values())))
  return {name: int(s) for name, s in zip(named, sums, strict=True)}


def changed(saved: dict[str, int], tree: Any) -> list[str]:
  """Paths of `tree` whose checksum is not the saved one."""
  return [p for p, s in checksums(tree).items() if saved.get(p) != s]


def check_beside(workdir: str, step: int, meta: dict[str, Any]) -> None:
  """Raises Mismatch if config or tokenizer are not those of a checkpoint.

  A changed activation or a changed order of the vocabulary would give wrong
  results without an error.

  Args:
    workdir: the run's folder, with config.json and the tokenizer's files.
    step: the step of the checkpoint.
    meta: the metadata of the checkpoint.
  """
  if "config" not in meta or "tokenizer" not in meta:
    files.say_once(
      f"note: {workdir}: the checkpoint of step {step} was saved by an earlier"
      " version of this program, which stored no digests of config.json and of"
      " the tokenizer; so these files are not checked."
    )
    return
  path = os.path.join(workdir, "config.json")
  written = files.read_object(path)
  lines = run_config.edits(written, meta["config"], of_model=True)
  if lines:
    raise Mismatch(
      f"{path} was changed since the checkpoint of step {step} was saved:"
      f" {'; '.join(lines)}. Put the old values back; for other values start a"
      " new run."
    )
  changed_files = files.different(meta["tokenizer"], workdir)
  changed_files += [
    name
    for name in vocabulary_files.NAMES
    if name not in meta["tokenizer"]
    and os.path.exists(os.path.join(workdir, name))
  ]
  if changed_files:
    raise Mismatch(
      f"{os.path.join(workdir, changed_files[0])} is not the file that the"
      f" checkpoint of step {step} was saved with: texts would get other ids."
      " Put the run's own tokenizer back (its prepared folder has a copy), or"
      " start the run's command again: it writes these files anew."
    )
