"""Trains a biLSTM tagger on frozen features: BERT's Table 7, on WNUT17.

  python experiments/bilstm_wnut17/run.py --model MINILM --data WNUT17 \
    --output experiments/bilstm_wnut17/results.jsonl

WNUT17 is a folder with wnut17train.conll, emerging.dev.conll and
emerging.test.annotated. The output has a line for each choice of features. A
line has F1 (conlleval's rule) on the development set and on the test set, for
the epoch that is best on the development set.
"""

import argparse
import functools
import json
import os
import time

import jax
import numpy as np

from bert_jax.tasks import metrics, task_inputs
from bert_jax.tasks.encoded_rows import Examples, Task
from bert_jax.use import bilstm_tagger
from bert_jax.use import features as features_of
from bert_jax.use.bilstm_tagger import (
  BiLstmTagger,
  TaggedSentences,
  TrainingOptions,
)
from bert_jax.use.features import Spec
from bert_jax.weights.load import OpenedModel, open_model

SPLIT_FILES = dict(
  train="wnut17train.conll",
  validation="emerging.dev.conll",
  test="emerging.test.annotated",
)
# The embeddings and the last four layers: all features but "mix_all" need only
# these.
LAYERS = (0, -4, -3, -2, -1)
# Row of Table 7 -> a function from the layers' vectors [words, n, d] to the
# features [words, ...], for an encoder of any depth. If the function returns
# several layers, the tagger learns a weight for each layer.
FEATURES_OF_LAYERS = {
  "embeddings": lambda x: x[:, 0],
  "second_to_last": lambda x: x[:, -2],
  "last": lambda x: x[:, -1],
  "sum_last_four": lambda x: x[:, -4:].sum(1),
  "mix_last_four": lambda x: x[:, -4:],
  "concat_last_four": lambda x: x[:, -4:].reshape(len(x), -1),
  "mix_all": lambda x: x[:, 1:],
}
LayersBySplit = dict[str, list[np.ndarray]]


def extract_layers(
  model: OpenedModel, splits: dict[str, Examples], features: list[str]
) -> LayersBySplit:
  """Returns split's name -> float32 arrays [words, n, d] of its sentences.

  The n layers are `LAYERS`, or all layers if `features` has "mix_all".
  """
  layers = LAYERS
  if "mix_all" in features:
    layers = tuple(range(features_of.num_layers_with_embeddings(model)))
  spec = Spec(layers, "stack", unit="word")
  by_split = {}
  for name in SPLIT_FILES:
    words = [example["words"] for example in splits[name]]
    sentence_features = features_of.extract(model, words, spec)
    by_split[name] = [features.vectors for features in sentence_features]
  return by_split


def sentences_of_split(
  task: Task, examples: Examples, layers: list[np.ndarray], name: str
) -> TaggedSentences:
  """Returns the features and tags of a split."""
  id_by_tag = {tag: i for i, tag in enumerate(task.labels)}
  tags = [
    np.int32([id_by_tag[tag] for tag in example["tags"]])
    for example in examples
  ]
  return TaggedSentences([FEATURES_OF_LAYERS[name](x) for x in layers], tags)


def _f1_score(
  task: Task, module, params, sentences, splits, split: str
) -> float:
  tag_ids = bilstm_tagger.predict(module, params, sentences[split])
  tags = [[task.labels[i] for i in sentence_ids] for sentence_ids in tag_ids]
  return metrics.evaluate(task, tags, splits[split])[task.metrics[0]]


def train_tagger(
  args: argparse.Namespace, task: Task, splits, layers: LayersBySplit, name: str
) -> dict:
  """Trains one tagger; returns its line of the output."""
  start = time.perf_counter()
  inputs = {
    split: sentences_of_split(task, splits[split], layers[split], name)
    for split in SPLIT_FILES
  }
  module = BiLstmTagger(len(task.labels), args.hidden)
  options = TrainingOptions(epochs=args.epochs, seed=args.seed)
  best_scores: dict = {"validation": -1.0}
  mix: list[float] = []
  for epoch, (params, loss) in enumerate(
    bilstm_tagger.fit(module, inputs["train"], options), 1
  ):
    score = functools.partial(_f1_score, task, module, params, inputs, splits)
    validation = score("validation")
    print(name, epoch, f"{loss:.4f} {validation:.4f}", flush=True)
    if validation > best_scores["validation"]:
      best_scores = dict(epoch=epoch, validation=validation, test=score("test"))
      mix_params = params["params"].get("mix", {"weights": np.zeros(0)})
      shares = np.asarray(jax.nn.softmax(mix_params["weights"]), np.float64)
      mix = shares.round(3).tolist()
  return dict(
    features=name,
    hidden=args.hidden,
    **options._asdict(),
    best=best_scores,
    mix=mix,
    seconds=round(time.perf_counter() - start, 1),
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  add = parser.add_argument
  add("--model", required=True)
  add("--data", required=True, help="folder of WNUT17")
  add(
    "--features",
    nargs="+",
    choices=tuple(FEATURES_OF_LAYERS),
    default=list(FEATURES_OF_LAYERS),
  )
  add("--hidden", type=int, default=768)
  add("--epochs", type=int, default=10)
  add("--seed", type=int, default=0)
  add("--output", required=True)
  args = parser.parse_args()
  task = task_inputs.find_task("wnut17")
  inputs = [
    task_inputs.Input(split, os.path.join(args.data, name))
    for split, name in SPLIT_FILES.items()
  ]
  contents = task_inputs.read(task, inputs)
  model = open_model(args.model, default_tower="discriminator")
  layers = extract_layers(model, contents.splits, args.features)
  for name in args.features:
    row = train_tagger(args, contents.task, contents.splits, layers, name)
    with open(args.output, "a", encoding="utf-8") as f:
      f.write(json.dumps(row) + "\n")


if __name__ == "__main__":
  main()
