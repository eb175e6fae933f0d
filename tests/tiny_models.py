"""Writes tiny converted models of all families, with their tokenizers."""

import json
import pathlib

import jax
import numpy as np
from tiny_families import fill
from tokenizers import pre_tokenizers

from bert_jax import models
from bert_jax.models import elmo, heads
from bert_jax.text import bpe, open_vocabulary
from bert_jax.weights import model_folder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS += ["the", "cat", "cats", "sat", "sit", "on", "mat", ".", "un", "##aff"]
WORDS += ["##able", "a", "b", "c", "##d"]
_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SIZES = dict(hidden=16, num_layers=2, heads=2, mlp=24, max_positions=34)
ELMO = dict(
  filters=[[1, 4], [2, 4]], hidden=8, cell=6, char_dim=4, vocab_size=5
)


def _tokenizer(family):
  """Returns (the tokenizer's files, the number of pieces)."""
  if family == "roberta":
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *_BYTES, "<mask>"]
    tokenizer = bpe.bytelevel({p: i for i, p in enumerate(pieces)}, [])
  elif family == "gpt":
    letters = "abcdefghijklmnopqrstuvwxyz.,"
    pieces = ["<unk>", *letters, *(f"{c}</w>" for c in letters)]
    tokenizer = bpe.gpt1({p: i for i, p in enumerate(pieces)}, [])
  else:
    return {"vocab.txt": "".join(f"{w}\n" for w in WORDS).encode()}, len(WORDS)
  # The files are like those of another library, which have no digests.
  return open_vocabulary.contents(tokenizer, with_digests=False), len(pieces)


def delete_digests(path):
  """Deletes the digests of a folder, so that its files can be changed."""
  file = pathlib.Path(path) / "config.json"
  config = json.loads(file.read_text())
  del config["sha256"], config["checksum"]
  file.write_text(json.dumps(config))


def write(path, family, task="encoder", head=None, labels=None, **sizes):
  """Writes a converted model with random parameters, and returns its path."""
  if family == "elmo":
    encoder, files = elmo.build("original", **ELMO | sizes), {}
  else:
    files, size = _tokenizer(family)
    embedding_size = (
      dict(embedding_size=8) if family in ("albert", "electra") else {}
    )
    encoder = models.family(family).build(
      next(iter(models.family(family).VARIANTS)),
      **SIZES | embedding_size | sizes | dict(vocab_size=size),
    )
  head = dict(head or {})
  if task in ("sequence_classification", "multiple_choice"):
    pooling = models.family(family).POOLING
    head["pooling"] = heads.Pooling(*pooling)._asdict()
  config = model_folder.make_config(
    family, task, model_folder.attributes(encoder), head=head, labels=labels
  )
  module = model_folder.module_of(config)
  ids = np.ones((1, 4), np.int32)
  batch = dict(input_ids=ids, mlm_positions=ids, cls_positions=ids)
  if family == "elmo":
    batch = dict(char_ids=np.ones((1, 4, 50), np.int32))
  params = jax.tree.map(np.asarray, fill(module, batch))
  weights = model_folder.Weights(config, model_folder.flatten(params), files)
  model_folder.write(str(path), weights)
  return str(path)
