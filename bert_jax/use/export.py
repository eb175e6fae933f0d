"""Writes a fine-tuned model to one file: program, parameters, tokenizer.

The file is a zip archive with `meta.json`, a `jax.export` program for each of a
few lengths, the parameters as .npy files, and the tokenizer's files. A program
takes any number of rows.

The file runs without the Python code of models, on the platforms that its
`meta.json` names. Later versions of jax can also run the file: jax promises
to read exported programs for at least half a year.
"""

import contextlib
import importlib.util
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax import export
from jaxtyping import Array

from bert_jax import files
from bert_jax.devices import sharding
from bert_jax.messages import Progress, UserError
from bert_jax.models import from_config, task_heads
from bert_jax.tasks import layouts
from bert_jax.tasks.bucket_lengths import EXPORT_BUCKETS
from bert_jax.tasks.encoded_rows import task_fields, task_of
from bert_jax.text import open_vocabulary
from bert_jax.training import evaluate_task
from bert_jax.use import predict
from bert_jax.use.predict import Predictor
from bert_jax.weights import model_folder
from bert_jax.weights.load import OpenedModel, open_model
from bert_jax.weights.model_folder import Weights

FORMAT_VERSION = 1
PLATFORMS = ("cpu", "cuda", "tpu")
INPUT_KEYS = ("input_ids", "segment_ids", "sequence_ids")
_META_NAME = "meta.json"
# A function that returns logits [b, ...]. Its arguments are the parameters by
# path, and an array [b, l] for each of `INPUT_KEYS`.
Program = Callable[..., Array]


def make_program(config: Mapping[str, Any], **computation: Any) -> Program:
  """Returns a function that computes a model's logits.

  Args:
    config: the config of a converted folder.
    **computation: see `weights.load.open_model`.
  """
  module = from_config.build(config, **computation)
  keys = task_heads.input_keys(module)

  def apply_model(params: dict[str, Array], *inputs: Array) -> Any:
    batch = dict(zip(INPUT_KEYS, inputs, strict=True))
    batch = {key: array for key, array in batch.items() if key in keys}
    return module.apply({"params": model_folder.unflatten(params)}, batch)

  return apply_model


def save(
  path: str,
  model: OpenedModel,
  lengths: Sequence[int] = EXPORT_BUCKETS,
  platforms: Sequence[str] = PLATFORMS,
  dtype: str = "float32",
) -> dict[str, Any]:
  """Exports a model to a file, which is written completely or not at all.

  Args:
    path: the file to write.
    model: the fine-tuned model.
    lengths: the lengths of rows, in tokens. A length that the model cannot read
      is replaced by the largest length that it can read.
    platforms: the platforms on which the file must run. The platform of this
      machine may be missing.
    dtype: the dtype of the computation.

  Returns:
    The content of the file's `meta.json`.

  Raises:
    UserError: the model is not fine-tuned, its tokenizer is missing or does not
      fit, or a length is too small.
    OSError: the file cannot be written.
  """
  _check_flatbuffers()
  weights, config = model.weights, model.config
  kind = predict.kind_of(config, model.path)
  if kind == "fill":
    raise UserError(
      f"{model.path} is a masked language model, and only fine-tuned models are"
      " exported; fine-tune it first."
    )
  layout = layouts.layout_of(predict.vocabulary_of(model))
  # Use only operations that all platforms have, so that one program is enough.
  computation = dict(attention="xla", elementwise="xla", unroll=1, dtype=dtype)
  program = make_program(config, **computation)
  max_length = from_config.build(config).encoder.max_length
  lengths = sorted({min(length, max_length) for length in lengths})
  layouts.check_length(layout, lengths[-1])
  if lengths[0] < 1:
    raise UserError(
      f"the length of rows is {lengths[0]}; it must be 1 or more."
    )
  meta = {
    "format_version": FORMAT_VERSION,
    "family": config["family"],
    "kind": kind,
    "task": task_fields(predict.task_of(config, kind, no_answer=False)),
    "lengths": lengths,
    "platforms": list(platforms),
    "dtype": dtype,
    "jax": jax.__version__,
    "tokenizer": sorted(weights.tokenizer_files),
    "arrays": sorted(weights.arrays),
  }
  with (
    Progress(f"exporting {path}") as progress,
    files.atomic_file(path) as partial_path,
    zipfile.ZipFile(partial_path, "w") as archive,
  ):
    archive.writestr(_META_NAME, json.dumps(meta, indent=2))
    for name, content in weights.tokenizer_files.items():
      archive.writestr(f"tokenizer/{name}", content)
    for length in lengths:
      progress.describe(f"the program for rows of {length} tokens")
      program_bytes = _export_program(program, weights, length, platforms)
      archive.writestr(f"program_{length}", bytes(program_bytes))
    progress.describe("the parameters")
    for name, array in weights.arrays.items():
      with archive.open(f"params/{name}.npy", "w", force_zip64=True) as f:
        np.lib.format.write_array(f, np.asarray(array), allow_pickle=False)
  return meta


def export_model(
  model_path: str,
  output_path: str,
  lengths: Sequence[int] = EXPORT_BUCKETS,
  platforms: Sequence[str] = PLATFORMS,
  dtype: str = "float32",
  family: str | None = None,
) -> dict[str, Any]:
  """Opens a model and exports it; see `save`.

  Args:
    model_path: a run's folder (RUN@best, RUN@STEP), a converted folder or a
      transformers folder.
    output_path: the file to write.
    lengths: see `save`.
    platforms: see `save`.
    dtype: the dtype of the computation.
    family: the family of a transformers folder; needed if its config.json does
      not name a family.

  Returns:
    The content of the file's `meta.json`.
  """
  if epath.Path(output_path).is_dir():
    raise UserError(f"{output_path} is a folder; give the name of a new file.")
  with Progress(f"opening {model_path}"):
    model = open_model(model_path, family=family)
  return save(output_path, model, lengths, platforms, dtype)


def _export_program(
  program: Program, weights: Weights, length: int, platforms: Sequence[str]
) -> bytearray:
  """Returns the serialized program for any number of rows of one length."""
  params = {
    name: jax.ShapeDtypeStruct(array.shape, array.dtype)
    for name, array in weights.arrays.items()
  }
  (num_rows,) = export.symbolic_shape("b")
  ids = jax.ShapeDtypeStruct((num_rows, length), jnp.int32)
  exporter = export.export(jax.jit(program), platforms=list(platforms))
  return exporter(params, *[ids] * len(INPUT_KEYS)).serialize()


def _check_flatbuffers() -> None:
  """Raises a UserError if flatbuffers is not installed.

  jax.export needs this package, but jax does not install it.
  """
  if importlib.util.find_spec("flatbuffers") is None:
    raise UserError(
      "jax.export needs the package flatbuffers: pip install"
      " 'bert_jax[export]'."
    )


@contextlib.contextmanager
def _damage_as_user_error(path: str) -> Iterator[None]:
  """Turns the errors that a damaged file causes into a UserError."""
  try:
    yield
  except OSError as e:
    raise UserError(f"{path}: {e.strerror or e}.") from e
  # zipfile and numpy raise the errors of this list for damaged files.
  # RuntimeError occurs because a flipped bit can make a member look encrypted,
  # or compressed by a method that zipfile does not know.
  except (
    *(zipfile.BadZipFile, zlib.error, KeyError, TypeError, EOFError),
    *(json.JSONDecodeError, UnicodeDecodeError, AttributeError),
    *(RuntimeError, OverflowError, MemoryError),
  ) as e:
    raise UserError(
      f"{path} is not an exported model, or it is damaged ({e}); export the"
      " model again."
    ) from e


def load(path: str, batch_size: int = 32, no_answer: bool = False) -> Predictor:
  """Opens a file that `save` wrote.

  Args:
    path: the exported file.
    batch_size: the number of rows in a batch.
    no_answer: True if a question may have no answer, as in SQuAD 2.0.

  Returns:
    The predictor for `predict.predict`, on one device.

  Raises:
    UserError: the file is missing or damaged, has another format, or does not
      run on this platform.
  """
  _check_flatbuffers()
  with _damage_as_user_error(path), zipfile.ZipFile(path) as archive:
    meta = files.parse_json(archive.read(_META_NAME))
    if meta["format_version"] != FORMAT_VERSION:
      raise UserError(
        f"{path}: format_version is {meta['format_version']}, but this"
        f" program reads {FORMAT_VERSION}; export the model again."
      )
    tokenizer_files = {
      name: archive.read(f"tokenizer/{name}") for name in meta["tokenizer"]
    }
    programs = {
      length: _load_program(bytearray(archive.read(f"program_{length}")), path)
      for length in meta["lengths"]
    }
    params = {}
    for name in archive.namelist():
      if name.startswith("params/"):
        content = io.BytesIO(archive.read(name))
        array = np.lib.format.read_array(content, allow_pickle=False)
        params[name.removeprefix("params/").removesuffix(".npy")] = array
    # Files of earlier versions do not list their arrays.
    unmatched_names = {*meta.get("arrays", params)} ^ params.keys()
    if unmatched_names:
      raise KeyError(f"params/{min(unmatched_names)}")
    task = task_of(meta["task"])
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  return Predictor(
    kind=meta["kind"],
    task=task._replace(metrics=("squad2",)) if no_answer else task,
    vocabulary=open_vocabulary.from_files(tokenizer_files, path),
    max_length=max(programs),
    batch_size=batch_size,
    top_k=0,
    params=jax.tree.map(jnp.asarray, params),
    step=evaluate_task.jit_replicated(_make_step(programs), mesh),
    mesh=mesh,
  )


def _make_step(programs: Mapping[int, Program]) -> Program:
  """Returns a function from parameters and a batch to logits.

  Each program has one length of rows. The function pads the rows of a batch to
  the smallest of these lengths that holds them. If each token has logits, the
  logits have the length of the program.
  """

  def step(params: dict[str, Array], batch: dict[str, Array]) -> Array:
    length = batch["input_ids"].shape[1]
    padded_length = min(
      program_length for program_length in programs if program_length >= length
    )
    padding = [(0, 0), (0, padded_length - length)]
    inputs = [jnp.pad(batch[key], padding) for key in INPUT_KEYS]
    return programs[padded_length](params, *inputs)

  return step


def _load_program(content: bytearray, path: str) -> Program:
  """Deserializes a program, and checks that it can run on this platform."""
  try:
    exported = export.deserialize(content)
  except Exception as e:
    # flatbuffers and MLIR raise errors of many types.
    reason = str(e).split("\n")[0][:200]
    raise UserError(
      f"{path}: jax {jax.__version__} does not read its program ({reason});"
      " export the model again."
    ) from e
  platform = jax.default_backend()
  platform = {"gpu": "cuda"}.get(platform, platform)
  if platform not in exported.platforms:
    raise UserError(
      f"{path} is for {', '.join(exported.platforms)}, but this platform is"
      f" {platform}; export the model again for this platform."
    )
  return exported.call
