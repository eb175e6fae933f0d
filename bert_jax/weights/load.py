"""Opens a model from any path: `open_model`."""

import dataclasses
import difflib
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from etils import epath
from tokenizers import Tokenizer

from bert_jax.messages import UserError, did_you_mean, note
from bert_jax.models import encoder as encoder_lib
from bert_jax.models import from_config
from bert_jax.text import model_tokenizer, open_vocabulary
from bert_jax.text.vocabulary import Vocabulary
from bert_jax.weights import (
  checkpoint,
  generator_discriminator,
  hf,
  hf_files,
  model_folder,
  runs,
  shipped,
)
from bert_jax.weights.model_folder import Weights

# The files that are fetched for a model on the hub.
_HUB_PATTERNS = ("*.json", "*.txt", "*.model", "*.safetensors")
# Torch's files are fetched only if there are no safetensors in the model's
# folder, nor in the folders of both ELECTRA towers. Safetensors in any other
# folder of the repository do not count, because they may hold a different
# format.
_HUB_TORCH_PATTERNS = tuple(
  f"{folder}pytorch_model*.bin"
  for folder in ("", *(f"{tower}/" for tower in generator_discriminator.TOWERS))
)


@dataclasses.dataclass(frozen=True, eq=False)
class OpenedModel:
  """Holds a model that was opened from files of any format.

  `params`, `tokenizer` and `vocabulary` are made when they are first used.

  Attributes:
    path: the path or name that was opened.
    weights: the config, the arrays and the tokenizer's files.
    module: the task's module, whose attribute `encoder` is the encoder.
  """

  path: str
  weights: Weights
  module: nn.Module

  @property
  def config(self) -> dict[str, Any]:
    """The content of config.json, such as family, task, sizes and labels."""
    return self.weights.config

  @functools.cached_property
  def params(self) -> dict[str, Any]:
    """The parameter tree: `module.apply({"params": params}, batch)`."""
    arrays = model_folder.unflatten(self.weights.arrays)
    return jax.tree.map(jnp.asarray, arrays)

  @functools.cached_property
  def tokenizer(self) -> Tokenizer | None:
    """The tokenizer, which adds special tokens; None if it is missing."""
    tokenizer = model_tokenizer.build(self.weights.tokenizer_files, self.path)
    if tokenizer is not None and self.config["family"] != "elmo":
      num_rows = self.config["model"]["vocab_size"]
      if message := model_tokenizer.missing_rows_message(
        tokenizer, num_rows, self.path
      ):
        note(f"note: {message}")
    return tokenizer

  @property
  def has_vocabulary(self) -> bool:
    """True if a vocabulary is among the tokenizer's files."""
    return open_vocabulary.has_tokenizer(self.weights.tokenizer_files)

  @functools.cached_property
  def vocabulary(self) -> Vocabulary:
    """The vocabulary, as `prepare` opens it.

    Raises:
      UserError: the tokenizer's files are missing or damaged.
    """
    if not self.has_vocabulary:
      raise UserError(
        f"{self.path} lacks the tokenizer's files; put them there."
      )
    files = self.weights.tokenizer_files
    return open_vocabulary.from_files(files, self.path)

  def __reduce__(self) -> tuple[Callable[..., "OpenedModel"], tuple[Any, ...]]:
    """Lets pickles and copies hold only what `_restore` needs."""
    fields = self.weights._asdict()
    # The default is a `MappingProxyType`, which cannot be pickled.
    fields["training_arrays"] = {**self.weights.training_arrays}
    return _restore, (self.path, fields, _computation_options(self.module))


def _restore(
  path: str, weights: dict[str, Any], computation: dict[str, Any]
) -> OpenedModel:
  """Makes a model from the parts that `OpenedModel.__reduce__` returns."""
  return _build(path, Weights(**weights), computation)


def _build(
  path: str, weights: Weights, computation: dict[str, Any]
) -> OpenedModel:
  """Builds the module of a model, and returns the model."""
  module = from_config.build(weights.config, **computation)
  return OpenedModel(path, weights, module)


def _computation_options(module: nn.Module) -> dict[str, Any]:
  """Returns the options of computation with which a module was built."""
  # ELMo's encoder has only some of the options.
  fields = encoder_lib.field_values(module.encoder)
  option_names = from_config.COMPUTATION_OPTIONS
  return {name: fields[name] for name in option_names if name in fields}


def open_model(
  path: str,
  *,
  family: str | None = None,
  tower: str | None = None,
  default_tower: str | None = None,
  best: bool = False,
  **computation: Any,
) -> OpenedModel:
  """Opens a model from any path.

  Args:
    path: one of these: a folder that `bert_jax convert` wrote; a folder of
      transformers, which is converted in memory; the folder of a run, for
      its newest checkpoint; RUN@best or RUN@STEP, for the best checkpoint or
      the checkpoint of a step; the name of a shipped model, "mini"; the name of
      a model on the Hugging Face hub.
    family: the family that the model must have; None allows any family. If the
      config.json of a transformers folder names no family, the user may have to
      give it here.
    tower: the tower of an ELECTRA to open: "generator", "discriminator" or
      "both".
    default_tower: the tower to open if the model has both and `tower` is None;
      None means both.
    best: if True, opens the best checkpoint of a run, as RUN@best does.
    **computation: the encoder's options of computation: `dtype`, `attention`,
      `unroll` and `remat`.

  Raises:
    UserError: the model cannot be opened. The message is one sentence.
  """
  weights = read(path, family, tower, best, default_tower)
  return _build(path, weights, computation)


def take_tower(model: OpenedModel, tower: str) -> OpenedModel:
  """Takes one tower of an ELECTRA with both towers.

  Any other model is returned unchanged.

  Args:
    model: a model of any family.
    tower: "generator" or "discriminator".
  """
  weights = generator_discriminator.choose_tower(
    model.weights, tower=None, path=model.path, default_tower=tower
  )
  if weights is model.weights:
    return model
  return _build(model.path, weights, _computation_options(model.module))


def read(
  path: str,
  family: str | None = None,
  tower: str | None = None,
  best: bool = False,
  default_tower: str | None = None,
) -> Weights:
  """Reads the weights of a model; see `open_model`."""
  folder, checkpoint_name = checkpoint.split_path(path)
  is_run = runs.is_run(folder)
  if (best or checkpoint_name) and not is_run:
    step_text = f"step {checkpoint_name}"
    if best or checkpoint_name == checkpoint.BEST:
      step_text = "best step"
    raise UserError(
      f"{folder} is not the folder of a run, so it has no {step_text}."
    )
  is_folder = epath.Path(folder).is_dir()
  is_shipped = not is_folder and folder in shipped.model_names()
  if not is_folder and not is_shipped:
    path = _download(folder)
  if is_shipped:
    weights = shipped.read(folder)
  elif is_run:
    weights = runs.read(path, best)
  elif model_folder.is_converted_folder(path):
    weights = model_folder.read(path)
  else:
    weights = hf.read(path, family or hf.find_family(path), tower)
  if family not in (None, weights.config["family"]):
    raise UserError(
      f"{path} is of family {weights.config['family']}, not {family}."
    )
  return generator_discriminator.choose_tower(
    weights, tower, path, default_tower
  )


def _download(name: str) -> str:
  # Names on the hub are OWNER/NAME or NAME. Any other text is a path.
  is_path = name.count("/") > 1 or name[:1] in "./~"
  if is_path or epath.Path(name).exists():
    raise UserError(f"there is no folder {name}.")
  try:
    import huggingface_hub
  except ImportError as e:
    raise UserError(
      f"there is no folder {name}{_models_advice(name)} To fetch a model of"
      " that name from the hub, pip install huggingface_hub."
    ) from e
  try:
    fetch = huggingface_hub.snapshot_download
    path = fetch(name, allow_patterns=[*_HUB_PATTERNS])
    if not hf_files.has_weights(path):
      path = fetch(name, allow_patterns=[*_HUB_PATTERNS, *_HUB_TORCH_PATTERNS])
    return path
  except Exception as e:
    # The network, the hub and bad names cause errors of many types.
    reason = str(e).strip().split("\n")[0][:200] or type(e).__name__
    raise UserError(
      f"there is no folder {name}, and the hub did not give it"
      f" ({reason}){_models_advice(name)}"
    ) from e


def _models_advice(name: str) -> str:
  """Returns the end of a sentence about a model that does not exist.

  The text names the shipped model with a similar name. If there is no such
  model, the text lists what can be opened.
  """
  shipped_names = shipped.model_names()
  if difflib.get_close_matches(name, shipped_names, n=1):
    return did_you_mean(name, shipped_names)
  return (
    "; a model is the folder of a run, a folder with config.json and weights,"
    f" a model of the hub, or {' or '.join(shipped_names)}, which the package"
    " ships."
  )
