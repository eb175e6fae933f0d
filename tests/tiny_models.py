"""Writes tiny converted models of all families, with their tokenizers."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from tiny_families import random_params
from tokenizers import pre_tokenizers

from bert_jax import models
from bert_jax.models import elmo, from_config, heads, task_heads
from bert_jax.tasks.encoded_rows import Task, task_fields
from bert_jax.text import bpe, open_vocabulary
from bert_jax.training.state import TrainState
from bert_jax.weights import checkpoint, model_folder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS += ["the", "cat", "cats", "sat", "sit", "on", "mat", ".", "un", "##aff"]
WORDS += ["##able", "a", "b", "c", "##d"]
_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SIZES = dict(hidden=16, num_layers=2, heads=2, mlp=24, max_positions=34)
ELMO_SIZES = dict(
  filters=[[1, 4], [2, 4]], hidden=8, cell=6, char_dim=4, vocab_size=5
)


def _tokenizer_files(family):
  """Returns (the tokenizer's files, the number of pieces)."""
  if family == "roberta":
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *_BYTES, "<mask>"]
    tokenizer = bpe.build_bytelevel(
      {piece: i for i, piece in enumerate(pieces)}, []
    )
  elif family == "gpt":
    letters = "abcdefghijklmnopqrstuvwxyz.,"
    pieces = ["<unk>", *letters, *(f"{letter}</w>" for letter in letters)]
    tokenizer = bpe.build_gpt1({piece: i for i, piece in enumerate(pieces)}, [])
  else:
    return {"vocab.txt": "".join(f"{word}\n" for word in WORDS).encode()}, len(
      WORDS
    )
  # Files of other libraries have no digests, so these have none either.
  return open_vocabulary.to_files(tokenizer, with_digests=False), len(pieces)


def delete_digests(path):
  """Deletes the digests of a folder's files.

  Otherwise a changed file would be refused as damaged.
  """
  config_path = pathlib.Path(path) / "config.json"
  config = json.loads(config_path.read_text())
  del config["sha256"], config["checksum"]
  config_path.write_text(json.dumps(config))


def write_model(
  path,
  family,
  task="encoder",
  head=None,
  labels=None,
  problem=None,
  extra_rows=0,
  **sizes,
):
  """Writes a converted model with random parameters, and returns its path.

  Args:
    path: the new folder.
    family: a key of `models.FAMILIES`, or "elmo".
    task: "encoder", "pretraining", or a value of `task_heads.TASK_BY_KIND`.
    head: the options of the head.
    labels: the names of the labels, or None.
    problem: the kind of the task, if `task` does not determine it; else None.
    extra_rows: how many more vectors the word table has than the tokenizer has
      pieces.
    **sizes: sizes of the encoder that replace or extend `SIZES`.
  """
  if family == "elmo":
    encoder, files = elmo.build("original", **ELMO_SIZES | sizes), {}
  else:
    files, num_pieces = _tokenizer_files(family)
    embedding_size = (
      dict(embedding_size=8) if family in ("albert", "electra") else {}
    )
    encoder = models.family(family).build(
      next(iter(models.family(family).VARIANTS)),
      **SIZES
      | embedding_size
      | sizes
      | dict(vocab_size=num_pieces + extra_rows),
    )
  head = dict(head or {})
  if task in ("sequence_classification", "multiple_choice"):
    pooling = models.family(family).POOLING
    head.setdefault("pooling", heads.Pooling(*pooling)._asdict())
  config = model_folder.make_config(
    family,
    task,
    from_config.model_attributes(encoder),
    head=head,
    labels=labels,
    problem=problem,
  )
  module = from_config.build(config)
  ids = np.ones((1, 4), np.int32)
  batch = dict(input_ids=ids, mlm_positions=ids, cls_positions=ids)
  if family == "elmo":
    batch = dict(char_ids=np.ones((1, 4, 50), np.int32))
  params = jax.tree.map(np.asarray, random_params(module, batch))
  weights = model_folder.Weights(config, model_folder.flatten(params), files)
  model_folder.write(str(path), weights)
  return str(path)


def write_run(path, folder):
  """Writes the folder of a run with the parameters of a converted model.

  Args:
    path: the new folder.
    folder: the converted model, which is for pre-training or fine-tuned.

  Returns:
    The path as a string.
  """
  config, arrays, files, _ = model_folder.read(str(folder))
  family, task = config["family"], config["task"]
  variants = (models.FAMILIES | models.WORD_FAMILIES)[family].VARIANTS
  objective_name = {"electra": "electra", "gpt": "lm", "elmo": "elmo"}.get(
    family, "mlm"
  )
  objective, meta = {"name": objective_name}, {}
  if objective_name == "mlm":
    objective["pairs"] = "pair/dense/kernel" in arrays
  if objective_name == "elmo":
    encoder = from_config.build(config).encoder
    softmax_shapes = traverse_util.flatten_dict(
      elmo.softmax_shapes(encoder), sep="/"
    )
    arrays |= {
      path_of_array: np.zeros(x.shape, np.float32)
      for path_of_array, x in softmax_shapes.items()
    }
  if task in task_heads.TASK_BY_KIND.values():
    kind = config["problem"] or next(
      kind for kind, name in task_heads.TASK_BY_KIND.items() if name == task
    )
    labels = config["labels"] or []
    objective = {"name": "finetune", "kind": kind, "labels": labels}
    meta = {
      "task": task_fields(
        Task("tiny", kind, tuple(labels), num_choices=1, metrics=())
      )
    }
  path = pathlib.Path(path)
  path.mkdir(parents=True)
  model = {"family": family, "variant": next(iter(variants))} | config["model"]
  run_config = {"objective": objective, "model": model}
  (path / "config.json").write_text(json.dumps(run_config))
  for file, content in files.items():
    (path / file).write_bytes(content)
  with checkpoint.Checkpointer(str(path)) as saver:
    params = model_folder.unflatten(arrays)
    saver.save(
      3,
      TrainState(step=jnp.int32(3), params=params, opt_state={}, carry={}),
      meta=meta,
      heldout_loss=None,
    )
    saver.wait()
  return str(path)
