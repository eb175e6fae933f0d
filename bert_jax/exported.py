"""A fine-tuned model as one file: its program, parameters and tokenizer.

The file is a zip archive: `meta.json`, a `jax.export` program for each of a
few lengths (any number of rows), the parameters as .npy, the tokenizer's files.
It runs without the model's Python code, on other platforms and later versions
of jax, as long as jax reads its own programs (half a year at least).
"""

import contextlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jaxtyping import Array

from bert_jax.convert import folder
from bert_jax.convert.folder import Weights
from bert_jax.data import vocabulary_files
from bert_jax.data.tokenizer import Vocabulary
from bert_jax.finetune import layout as layouts
from bert_jax.finetune.rows import Task, task_of
from bert_jax.models import tasks

FORMAT_VERSION = 1
LENGTHS = (32, 64, 128, 256, 512)
PLATFORMS = ("cpu", "cuda", "tpu")
INPUTS = ("input_ids", "segment_ids", "sequence_ids")
_META = "meta.json"
# (batch of `INPUTS`, each [b, l]) -> logits [b, ...].
Runner = Callable[[Mapping[str, np.ndarray]], Array]


class Exported(NamedTuple):
  """What is needed to predict, from a file or from a live model.

  Attributes:
    task: kind and labels.
    vocabulary: text to ids.
    lengths: that rows may have.
    pad: id of padding.
    run: the model.
  """

  task: Task
  vocabulary: Vocabulary
  lengths: tuple[int, ...]
  pad: int
  run: Runner


def task_of_model(config: Mapping[str, Any], where: str) -> Task:
  """The task of a converted folder or of a fine-tuned run.

  Args:
    config: of `Weights`.
    where: the model, for messages.

  Raises:
    ValueError: no fine-tuned model of a kind that has one answer.
  """
  if "fine_tuned" in config["source"]:
    return task_of(config["source"]["fine_tuned"])
  name, labels = config["task"], tuple(config["labels"] or ())
  kinds = [kind for kind, known in tasks.NAMES.items() if known == name]
  if not kinds or config["problem"] == "multi_label":
    raise ValueError(
      f"{where} is a model for {config['problem'] or name}; exported are"
      f" {', '.join(tasks.NAMES)}."
    )
  if config["problem"] == "regression":
    return Task(name, "regression", (), 1, ())
  if kinds[0] in ("span", "choice"):
    labels = ()
  return Task(name, kinds[0], labels, 1, ())


def _check_lengths(
  lengths: Sequence[int], longest: int, layout: layouts.Layout
) -> tuple[int, ...]:
  lengths = tuple(sorted(set(lengths)))
  if not lengths or lengths[-1] > longest:
    raise ValueError(f"lengths {lengths}: one at least, {longest} at most.")
  layouts.check_length(layout, lengths[0])
  return lengths


def live(
  weights: Weights, where: str, lengths: Sequence[int], **computation: Any
) -> Exported:
  """A model of `loading.read` that predicts by its Python code.

  Args:
    weights: the model.
    where: it is, for messages.
    lengths: that rows may have.
    **computation: see `loading.load`.

  Raises:
    ValueError: no fine-tuned model, no tokenizer or another's, lengths.
  """
  run, made = _model(weights, where, lengths, **computation)
  params = jax.tree.map(jnp.asarray, dict(weights.arrays))
  jitted = jax.jit(run)
  return made._replace(
    run=lambda batch: jitted(params, *(batch[key] for key in INPUTS))
  )


def _model(
  weights: Weights, where: str, lengths: Sequence[int], **computation: Any
) -> tuple[Callable[..., Array], Exported]:
  """(parameters by path, inputs) -> logits, and an `Exported` without it."""
  config = weights.config
  task = task_of_model(config, where)
  if not vocabulary_files.has_tokenizer(weights.tokenizer_files):
    raise ValueError(f"{where} has no tokenizer; put its files beside it.")
  vocabulary = vocabulary_files.of_files(weights.tokenizer_files, where)
  layout = layouts.of_vocabulary(vocabulary)
  size = config["model"]["vocab_size"]
  if layout.vocab_size > size:
    raise ValueError(
      f"{where}: its tokenizer needs {layout.vocab_size} ids, special ones"
      f" included; the model has {size}."
    )
  module = folder.module_of(config, **computation)
  longest = module.encoder.max_length
  lengths = _check_lengths(
    [n for n in lengths if n <= longest] or lengths, longest, layout
  )

  def run(params, *inputs):
    batch = dict(zip(INPUTS, inputs, strict=True))
    return module.apply({"params": folder.unflatten(params)}, batch)

  nothing: Any = None
  return run, Exported(task, vocabulary, lengths, layout.pad, nothing)


def save(
  path: str,
  weights: Weights,
  where: str,
  lengths: Sequence[int] = LENGTHS,
  platforms: Sequence[str] = PLATFORMS,
  dtype: str = "float32",
) -> Exported:
  """Writes a file that is whole or not there.

  Args:
    path: of the file.
    weights: the model, of `loading.read`.
    where: it is, for messages.
    lengths: of rows; those that the model does not take are left out.
    platforms: that the program is for; no such device is needed here.
    dtype: of the computation.

  Returns:
    What the file holds, without the program.

  Raises:
    ValueError: see `live`.
    OSError: it cannot be written.
  """
  # What every platform has, and one program for all of them.
  computation = dict(attention="xla", elementwise="xla", unroll=1, dtype=dtype)
  run, made = _model(weights, where, lengths, **computation)
  shapes = {
    name: jax.ShapeDtypeStruct(a.shape, a.dtype)
    for name, a in weights.arrays.items()
  }
  (rows,) = export.symbolic_shape("b")
  programs = {}
  for length in made.lengths:
    ids = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    exporter = export.export(jax.jit(run), platforms=list(platforms))
    programs[length] = exporter(shapes, *[ids] * len(INPUTS)).serialize()
  meta = {
    "format_version": FORMAT_VERSION,
    "family": weights.config["family"],
    "task": made.task._asdict(),
    "pad": made.pad,
    "lengths": made.lengths,
    "platforms": list(platforms),
    "dtype": dtype,
    "jax": jax.__version__,
    "tokenizer": sorted(weights.tokenizer_files),
  }
  partial = f"{path}.partial"
  try:
    with zipfile.ZipFile(partial, "w") as file:
      file.writestr(_META, json.dumps(meta, indent=2))
      for name, content in weights.tokenizer_files.items():
        file.writestr(f"tokenizer/{name}", content)
      for length, program in programs.items():
        file.writestr(f"program_{length}", bytes(program))
      for name, array in weights.arrays.items():
        with file.open(f"params/{name}.npy", "w", force_zip64=True) as f:
          np.lib.format.write_array(f, np.asarray(array), allow_pickle=False)
    os.replace(partial, path)
  finally:
    with contextlib.suppress(FileNotFoundError):
      os.remove(partial)
  return made


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
  """Turns what a damaged file raises into one sentence."""
  try:
    yield
  except OSError as e:
    raise ValueError(f"{path}: {e.strerror or e}.") from e
  # Of zip archives, their parts and jax's programs.
  except (zipfile.BadZipFile, zlib.error, KeyError, TypeError, EOFError) as e:
    raise ValueError(f"{path} is no exported model, or damaged ({e}).") from e


def load(path: str) -> Exported:
  """Opens a file that `save` wrote; nothing else is needed.

  Raises:
    ValueError: no such file, damaged, of another format, or for other
      platforms than this one.
  """
  with _reading(path), zipfile.ZipFile(path) as file:
    meta = json.loads(file.read(_META))
    if meta["format_version"] != FORMAT_VERSION:
      raise ValueError(
        f"{path}: format_version is {meta['format_version']}, this program"
        f" reads {FORMAT_VERSION}; export the model again."
      )
    files = {n: file.read(f"tokenizer/{n}") for n in meta["tokenizer"]}
    programs = {
      n: _program(bytearray(file.read(f"program_{n}")), path)
      for n in meta["lengths"]
    }
    params = {}
    for name in file.namelist():
      if name.startswith("params/"):
        content = io.BytesIO(file.read(name))
        array = np.lib.format.read_array(content, allow_pickle=False)
        params[name.removeprefix("params/").removesuffix(".npy")] = array
    made = Exported(
      task_of(meta["task"]),
      vocabulary_files.of_files(files, path),
      tuple(meta["lengths"]),
      meta["pad"],
      lambda _: None,
    )
  params = jax.tree.map(jnp.asarray, params)

  def run(batch):
    ids = [batch[key] for key in INPUTS]
    return programs[ids[0].shape[1]](params, *ids)

  return made._replace(run=run)


def _program(content: bytearray, path: str) -> Callable[..., Array]:
  try:
    program = export.deserialize(content)
  except Exception as e:
    # Its errors have many types, of flatbuffers and of MLIR.
    reason = str(e).split("\n")[0][:200]
    raise ValueError(
      f"{path}: jax {jax.__version__} does not read its program ({reason});"
      " export the model again."
    ) from e
  platform = jax.default_backend()
  platform = {"gpu": "cuda"}.get(platform, platform)
  if platform not in program.platforms:
    raise ValueError(
      f"{path} is for {', '.join(program.platforms)}, this is a {platform};"
      " export it with --platforms."
    )
  return jax.jit(program.call)
