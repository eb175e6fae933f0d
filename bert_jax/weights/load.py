"""Opens a model for another project: `bert_jax.load`."""

import os
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from tokenizers import Tokenizer

from bert_jax.messages import note
from bert_jax.text import model_tokenizer
from bert_jax.weights import checkpoint, hf, hf_files, runs
from bert_jax.weights import generator_discriminator as towers
from bert_jax.weights import model_folder as folder
from bert_jax.weights.model_folder import Weights

# The files that are fetched of a model on the hub; torch's if the model itself,
# or both towers of ELECTRA, have no others: safetensors of another format may
# lie in other folders of the repository.
_PATTERNS = ("*.json", "*.txt", "*.model", "*.safetensors")
_TORCH = tuple(
  f"{place}pytorch_model*.bin"
  for place in ("", *(f"{tower}/" for tower in towers.TOWERS))
)


class Loaded(NamedTuple):
  """A model that is ready to run.

  Attributes:
    module: encoder and head of the task, the encoder as `.encoder`.
    params: its parameters: `module.apply({"params": params}, batch)`.
    tokenizer: adds the special tokens itself; None if the model came without.
    config: family, task, sizes, label names, where it came from.
  """

  module: nn.Module
  params: dict[str, Any]
  tokenizer: Tokenizer | None
  config: dict[str, Any]


def load(
  path: str,
  *,
  family: str | None = None,
  tower: str | None = None,
  **computation: Any,
) -> Loaded:
  """Opens a converted folder, a folder of transformers, a run, a hub name.

  Args:
    path: a folder that `bert_jax.weights` wrote; one of transformers, which is
      converted in memory; the --workdir of a run, whose newest checkpoint is
      taken, or RUN@best or RUN@STEP for another one; or else the name of a
      model on the Hugging Face hub.
    family: of a folder of transformers whose config.json names none.
    tower: of ELECTRA: "generator", "discriminator", "both".
    **computation: `dtype`, `attention`, `unroll`, `remat` of the encoder.

  Raises:
    ValueError: with one sentence, whatever is wrong.
  """
  weights = read(path, family, tower)
  config = weights.config
  module = folder.module_of(config, **computation)
  params = jax.tree.map(jnp.asarray, folder.unflatten(weights.arrays))
  made = model_tokenizer.build(weights.tokenizer_files, path)
  if made is not None and config["family"] != "elmo":
    rows = config["model"]["vocab_size"]
    if line := model_tokenizer.without_rows(made, rows, path):
      note(f"note: {line}")
  return Loaded(module, params, made, config)


def read(
  path: str,
  family: str | None = None,
  tower: str | None = None,
  best: bool = False,
) -> Weights:
  """Reads the weights of a model; all commands that open a model call it.

  Args:
    path: the model; see `load`.
    family: the model's family; see `load`.
    tower: a tower of ELECTRA; see `load`.
    best: if True, reads the best checkpoint of a run instead of the newest.
  """
  plain, name_of_step = checkpoint.split_path(path)
  is_run = runs.is_run(plain)
  if (best or name_of_step) and not is_run:
    step = f"step {name_of_step}"
    if best or name_of_step == checkpoint.BEST:
      step = "best step"
    raise ValueError(
      f"{plain} is not the --workdir of a run, so it has no {step}."
    )
  if not os.path.isdir(plain):
    path = plain = _download(plain)
  if is_run:
    weights = runs.read(path, best)
  elif folder.is_folder(path):
    weights = folder.read(path)
  else:
    return hf.read(path, family or hf.find_family(path), tower)
  if family not in (None, weights.config["family"]):
    raise ValueError(f"{path} is of family {weights.config['family']}.")
  both = weights.config["task"] == "pretraining"
  if weights.config["family"] != "electra" or not both:
    if tower is not None:
      towers.check_name(weights.config["family"], tower)
      towers.check_is(weights, tower, path)
    return weights
  towers.check_name("electra", tower)
  return weights if tower in (None, "both") else towers.split(weights, tower)


def _download(name: str) -> str:
  if os.path.exists(name) or name.count("/") > 1 or name[:1] in "./~":
    raise ValueError(f"{name}: no such folder.")
  try:
    import huggingface_hub
  except ImportError as e:
    raise ValueError(
      f"{name}: no such folder; to fetch a model of that name from the hub, pip"
      " install huggingface_hub."
    ) from e
  try:
    fetch = huggingface_hub.snapshot_download
    path = fetch(name, allow_patterns=[*_PATTERNS])
    if not hf_files.has_weights(path):
      path = fetch(name, allow_patterns=[*_PATTERNS, *_TORCH])
    return path
  except Exception as e:
    # Errors of the network, of the hub and of names have many types.
    reason = str(e).strip().split("\n")[0][:200] or type(e).__name__
    raise ValueError(
      f"{name}: no such folder, and the hub did not give it ({reason})."
    ) from e
