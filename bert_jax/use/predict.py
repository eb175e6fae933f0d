"""A model with its head: examples to predictions, in order."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.devices import sharding
from bert_jax.messages import UserError
from bert_jax.models import task_heads
from bert_jax.tasks import (
  encoded_rows,
  layouts,
  predictions,
  questions,
  tagging,
  windows,
)
from bert_jax.tasks.batches import Batches, Split
from bert_jax.tasks.bucket_lengths import BUCKETS
from bert_jax.tasks.encoded_rows import Examples, Rows, Task
from bert_jax.text import added_tokens
from bert_jax.text.open_vocabulary import check_same
from bert_jax.text.vocabulary import Vocabulary
from bert_jax.training import evaluate_task
from bert_jax.use import fill_mask
from bert_jax.weights import hf_config, model_folder
from bert_jax.weights.load import OpenedModel, open_model

# Examples that are read, run and written together.
CHUNK = 1024
_KINDS = {
  "multiple_choice": "choice",
  "token_classification": "tagging",
  "span": "span",
}


class Predictor(NamedTuple):
  """A model that is ready to predict.

  Attributes:
    kind: what it predicts, a key of `requests.PARSERS`.
    task: labels and metrics.
    vocabulary: text to ids.
    length: tokens in a row at most.
    batch_size: rows of all devices.
    top: candidates for a mask.
    params: on the devices.
    step: (params, batch) -> logits; of masks, (probabilities, ids).
    mesh: the mesh of the devices.
  """

  kind: str
  task: Task
  vocabulary: Vocabulary
  length: int
  batch_size: int
  top: int
  params: Any
  step: Any
  mesh: Mesh


def kind_of(config: dict[str, Any], path: str) -> str:
  """Returns what a model predicts; raises UserError if it has no such head."""
  name = config["task"]
  if name == "sequence_classification":
    return config["problem"] or "classification"
  if fill_mask.can_fill(config):
    return "fill"
  if name not in _KINDS:
    raise UserError(
      f"{path} is a model for {name} of family {config['family']}: it has no"
      " head to predict with; fine-tune it first."
    )
  return _KINDS[name]


def vocabulary_of(model: OpenedModel) -> Vocabulary:
  """A model's vocabulary; ValueError if it has none, or another model's."""
  vocabulary = model.vocabulary
  size = model.config["model"]["vocab_size"]
  layout = layouts.of_vocabulary(vocabulary)
  needed = layout.vocab_size
  if needed > size:
    names = [*vocabulary.pieces, *layout.extra][size:]
    raise UserError(
      f"{model.path}: its rows need {needed} pieces, the model has {size}, and"
      f" none for {added_tokens.listed(names)}; fine-tune it, which adds rows"
      " for them, or put its own tokenizer's files there."
    )
  return vocabulary


def task_of(config: dict[str, Any], kind: str, null: bool) -> Task:
  """The task that a model was fine-tuned for, as far as its files say."""
  saved = config["source"].get("fine_tuned")
  if saved:
    task = encoded_rows.task_of(saved)
  else:
    named = kind in ("classification", "multi_label", "tagging")
    labels = config["labels"] if named else None
    count = config["head"].get("num_labels") or 1
    if kind == "regression" and count > 1:
      # With several outputs, the predicted numbers have the outputs' names.
      labels = config["labels"] or hf_config.default_labels(count)
    task = Task("", kind, tuple(labels or ()), 1, ())
  return task._replace(metrics=("squad2",)) if null else task


def open_predictor(
  path: str,
  batch_size: int = 32,
  length: int = 512,
  top: int = 5,
  best: bool = False,
  null: bool = False,
  dtype: str = "float32",
  family: str | None = None,
) -> Predictor:
  """Opens a run, a converted folder or one of transformers, to predict.

  Args:
    path: see `bert_jax.load`.
    batch_size: rows at a time; rounded up to a multiple of the devices.
    length: tokens in a row at most, bounded by the model's positions.
    top: candidates for each mask.
    best: if True, opens the checkpoint of a run with the best score.
    null: a question may have no answer, as in SQuAD 2.0.
    dtype: the dtype of the computation.
    family: the family of a transformers folder whose config.json names none.

  Raises:
    ValueError: no model, no head, no tokenizer, or not its own.
  """
  model = open_model(
    path, family=family, default_tower="generator", best=best, dtype=dtype
  )
  config, module = model.config, model.module
  kind = kind_of(config, path)
  if null and kind != "span":
    raise UserError(
      f"{path} is a model for {kind}; only questions can have no answer."
    )
  vocabulary = vocabulary_of(model)
  size = vocabulary.vocab_size
  mesh = sharding.make_mesh()
  devices = mesh.shape["data"]
  place = NamedSharding(mesh, PartitionSpec())
  params = jax.device_put(model_folder.unflatten(model.weights.arrays), place)
  return Predictor(
    kind,
    task_of(config, kind, null),
    vocabulary,
    min(length, module.encoder.max_length),
    -(-batch_size // devices) * devices,
    min(top, size),
    params,
    evaluate_task.jit_replicated(
      _make_step(module, kind, min(top, size), size), mesh
    ),
    mesh,
  )


def _make_step(module: Any, kind: str, top: int, pieces: int) -> Any:
  keys = task_heads.input_keys(module)

  def step(params, batch):
    inputs = {key: batch[key] for key in keys if key in batch}
    if kind != "fill":
      return module.apply({"params": params}, inputs)
    positions = batch["mlm_positions"]
    log_p = fill_mask.log_probabilities(module, params, inputs, positions)
    # Rows of the word table beyond the pieces only pad it to a round number.
    values, ids = jax.lax.top_k(log_p[:, 0, :pieces], top)
    # One array; ids are exact in float32.
    return jnp.stack([values, ids.astype(jnp.float32)], -1)

  return step


def encode(
  predictor: Predictor, examples: Sequence[dict[str, Any]]
) -> tuple[Rows, np.ndarray | None]:
  """Rows of examples, each with as many windows as it needs.

  Returns:
    The rows, whose `example` of choices counts choices; places of masks.
  """
  kind, vocabulary = predictor.kind, predictor.vocabulary
  examples, length = list(examples), predictor.length
  if kind == "tagging":
    tag_rows = tagging.rows(predictor.task, examples, vocabulary, length)
    return tag_rows.rows, None
  if kind == "span":
    return questions.rows(examples, vocabulary, length, stride=None).rows, None
  if kind == "fill":
    texts = [example["text"] for example in examples]
    return windows.masked_rows(texts, vocabulary, length)
  texts = [example["texts"] for example in examples]
  if kind == "choice":
    texts = [choice for choices in texts for choice in choices]
  return windows.rows(texts, vocabulary, length), None


def run(
  predictor: Predictor, rows: Rows, places: np.ndarray | None
) -> list[np.ndarray]:
  """The model's outputs of each row, in order."""
  if not len(rows.example):
    return []
  # Labels are not read: rows of one kind do for all.
  task = predictor.task._replace(kind="classification", columns=1)
  rows = rows._replace(labels=np.full(len(rows.example), -1, np.int32))
  pad = layouts.of_vocabulary(predictor.vocabulary).pad
  buckets = [size for size in BUCKETS if size < predictor.length]
  buckets = (*buckets, predictor.length)
  size = predictor.batch_size
  batches = Batches(task, rows, pad, size, group=True, buckets=buckets)

  def extra(units):
    positions = np.where(units < 0, 0, places[units])
    return {"mlm_positions": positions[:, None].astype(np.int32)}

  add = None if places is None else extra
  with sharding.use_mesh(predictor.mesh):
    step, params = predictor.step, predictor.params
    outputs = [
      *evaluate_task.run_batches(step, params, batches, predictor.mesh, add)
    ]
  return evaluate_task.logits_of_units(
    jax.device_get(outputs), len(rows.example)
  )


def predict(
  predictor: Predictor, examples: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
  """Predictions of examples, one each, in order; see `results`."""
  if not examples:
    return []
  rows, places = encode(predictor, examples)
  predictions = run(predictor, rows, places)
  return make_results(predictor, rows, predictions, list(examples))


def mask_token(predictor: Predictor) -> str | None:
  """Returns the tokenizer's mask token as text; None if it has none."""
  number = predictor.vocabulary.special.mask
  return None if number is None else predictor.vocabulary.pieces[number]


def label_order(
  predictor: Predictor, split: Split, data_path: str
) -> list[int] | None:
  """Places of a split's labels among the model's; None where it has none.

  Args:
    predictor: the model.
    split: the rows.
    data_path: their folder, for messages.

  Raises:
    ValueError: a model of another kind, vocabulary or other labels.
  """
  task, model_labels = split.task, predictor.task.labels
  if predictor.kind != task.kind:
    raise UserError(
      f"{data_path} is of kind {task.kind}, the model of {predictor.kind}."
    )
  check_same(
    split.pieces,
    predictor.vocabulary.pieces,
    data_path,
    "the model",
    "prepare the folder with the model's tokenizer",
  )
  if task.kind not in ("classification", "multi_label", "tagging"):
    return None
  columns = model_folder.columns_of(task.labels, model_labels)
  if columns is None:
    raise UserError(
      f"{data_path} has the labels {', '.join(task.labels)}, the model"
      f" {', '.join(model_labels)}."
    )
  return columns


def predict_split(
  predictor: Predictor, split: Split, data_path: str
) -> list[Any]:
  """Returns the predictions for a split, as `make_predictions` makes them.

  Labels are matched by name, because the model may have them in another order.
  The arguments and errors are those of `label_order`.
  """
  order = label_order(predictor, split, data_path)
  logits = run(predictor, split.rows, None)
  if order is not None:
    logits = [x[..., order] for x in logits]
  return evaluate_task.predictions(split, logits)


def chunks(items: Iterator[Any], size: int = CHUNK) -> Iterator[list[Any]]:
  """Lists of `size` items; the last one may be shorter."""
  chunk = []
  for item in items:
    chunk.append(item)
    if len(chunk) == size:
      yield chunk
      chunk = []
  if chunk:
    yield chunk


Result = dict[str, Any]


def softmax(logits: np.ndarray) -> np.ndarray:
  """Along the last axis, in float64."""
  logits = np.asarray(logits, np.float64)
  chances = np.exp(logits - logits.max(-1, keepdims=True))
  return chances / chances.sum(-1, keepdims=True)


def make_results(
  predictor: Any, rows: Rows, logits: Sequence[np.ndarray], examples: Examples
) -> list[Result]:
  """Makes each example's prediction.

  Args:
    predictor: the predictor that computed the logits.
    rows: the rows that `encode` made.
    logits: the logits of each row.
    examples: their raw fields.

  Raises:
    ValueError: logits that are not finite.
  """
  kind, task = predictor.kind, predictor.task
  if kind == "fill":
    predictions.check_finite(*logits)
    return _masks(predictor, rows, logits, examples)
  if kind == "span":
    results = predictions.make_predictions(task, rows, logits, examples)
    return [_answer(result) for result in results]
  if kind == "tagging":
    tags = predictions.make_predictions(task, rows, logits, examples)
    chances = tag_chances(rows, logits, examples, tags, task.labels)
    return [
      {"words": e["words"], "tags": t, "probabilities": p}
      for e, t, p in zip(examples, tags, chances, strict=True)
    ]
  means = predictions.mean_of_windows(rows, np.asarray(logits, np.float64))
  predictions.check_finite(means)
  if kind == "regression":
    return [_scores(task.labels, x) for x in means]
  if kind == "choice":
    counts = [len(e["texts"]) for e in examples]
    scores_by_example = np.split(means[:, 0], np.cumsum(counts)[:-1])
    return [_chosen(softmax(scores)) for scores in scores_by_example]
  if kind == "multi_label":
    return [_labels(task.labels, 1 / (1 + np.exp(-x))) for x in means]
  return [_label(task.labels, x) for x in softmax(means)]


def _label(labels: Sequence[str], chances: np.ndarray) -> Result:
  best = int(chances.argmax())
  return {
    "label": labels[best],
    "probability": float(chances[best]),
    "probabilities": dict(zip(labels, chances.tolist(), strict=True)),
  }


def _scores(names: Sequence[str], values: np.ndarray) -> Result:
  if len(values) == 1:
    return {"score": float(values[0])}
  return {"scores": dict(zip(names, values.tolist(), strict=True))}


def _labels(labels: Sequence[str], chances: np.ndarray) -> Result:
  named = dict(zip(labels, chances.tolist(), strict=True))
  chosen = [name for name, chance in named.items() if chance > 0.5]
  return {"labels": chosen, "probabilities": named}


def _chosen(chances: np.ndarray) -> Result:
  best = int(chances.argmax())
  return {
    "choice": best,
    "probability": float(chances[best]),
    "probabilities": chances.tolist(),
  }


def _answer(answer: dict[str, Any]) -> Result:
  odds = {k: answer[k] for k in ("null_odds",) if k in answer}
  nbest = [
    {"text": x["text"], "probability": x["probability"]}
    for x in answer["nbest"]
  ]
  chances = {x["text"]: x["probability"] for x in nbest}
  text = answer["text"]
  chance = chances.get(text, 0.0)
  if odds and "" not in chances:
    # A beam's list is of answers, given that there is one; that there is none
    # has a chance of its own, of which `null_odds` is the logit.
    none, some = softmax(np.array([answer["null_odds"], 0.0])).tolist()
    chance = chance * some if text else none
  return {"answer": text, "probability": chance} | odds | {"nbest": nbest}


def tag_chances(
  rows: Rows,
  logits: Sequence[np.ndarray],
  examples: Examples,
  tags: Sequence[Sequence[str | None]],
  labels: Sequence[str],
) -> list[list[float | None]]:
  """The probability of each word's tag, in the window that it is read in.

  A word counts in one window only (`tagging.rows`); 1 for one without a piece,
  whose tag is O whatever the model says, None if the model has no O.
  """
  ids = {name: i for i, name in enumerate(labels)}
  chances: list[list[float | None]] = [
    [1.0 if tag else None for tag in row] for row in tags
  ]
  for i, example in enumerate(rows.example):
    words = rows.offsets[rows.starts[i] : rows.starts[i + 1], 0]
    places = np.flatnonzero(words >= 0)
    found = softmax(logits[i][places])
    for word, chance in zip(words[places], found, strict=True):
      chances[example][word] = float(chance[ids[tags[example][word]]])
  return chances


def _masks(
  predictor: Any, rows: Rows, outputs: Sequence[np.ndarray], examples: Examples
) -> list[Result]:
  results: list[Result] = [{"masks": []} for _ in examples]
  pieces = predictor.vocabulary.pieces
  for example, candidates in zip(rows.example, outputs, strict=True):
    named = [
      {"token": pieces[int(i)], "probability": float(np.exp(value))}
      for value, i in candidates
    ]
    results[example]["masks"].append(named)
  return results
