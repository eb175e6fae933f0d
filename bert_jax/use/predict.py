"""Predicts with a model and its head, in the order of the examples."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from bert_jax.devices import sharding
from bert_jax.messages import Progress, UserError
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
from bert_jax.tasks.files import tags as tags_lib
from bert_jax.text import added_tokens
from bert_jax.text.open_vocabulary import check_same_pieces
from bert_jax.text.vocabulary import Vocabulary
from bert_jax.training import evaluate_task
from bert_jax.use import fill_mask, text_inputs
from bert_jax.weights import hf_config, model_folder
from bert_jax.weights.load import OpenedModel, open_model

# The number of examples that are read, predicted and written together.
CHUNK_SIZE = 1024
Example = TypeVar("Example")
# Task of a model's head -> the kind of its predictions.
_KIND_BY_TASK = {
  "multiple_choice": "choice",
  "token_classification": "tagging",
  "span": "span",
}


class Predictor(NamedTuple):
  """Holds a model that is ready to predict.

  Attributes:
    kind: what the model predicts; a key of `requests.PARSERS`.
    task: the task with its labels and metrics.
    vocabulary: the model's vocabulary.
    max_length: the largest number of tokens in a row.
    batch_size: the number of rows in a batch, on all devices together.
    top_k: the number of candidates for a mask.
    params: the parameters, on the devices.
    step: (params, batch) -> logits. For kind "fill" the output is float32
      [b, top_k, 2]: the log-probability and the id of each candidate.
    mesh: the mesh of the devices.
  """

  kind: str
  task: Task
  vocabulary: Vocabulary
  max_length: int
  batch_size: int
  top_k: int
  params: Any
  step: Any
  mesh: Mesh


def kind_of(config: dict[str, Any], path: str) -> str:
  """Returns the kind of a model's predictions.

  Args:
    config: the config of a converted folder.
    path: the model's path, for messages.

  Raises:
    UserError: the model has no head that predicts.
  """
  head = config["task"]
  if head == "sequence_classification":
    return config["problem"] or "classification"
  if fill_mask.can_fill(config):
    return "fill"
  if head not in _KIND_BY_TASK:
    raise UserError(
      f"{path} is a model for {head} of family {config['family']}: it has no"
      " head to predict with; fine-tune it first."
    )
  return _KIND_BY_TASK[head]


def vocabulary_of(model: OpenedModel) -> Vocabulary:
  """Returns a model's vocabulary.

  Raises:
    UserError: the model has no vocabulary, or its word table lacks pieces that
      its inputs need.
  """
  vocabulary = model.vocabulary
  table_size = model.config["model"]["vocab_size"]
  layout = layouts.layout_of(vocabulary)
  num_needed = layout.vocab_size
  if num_needed > table_size:
    names = [*vocabulary.pieces, *layout.new_tokens][table_size:]
    raise UserError(
      f"{model.path}: its inputs need {num_needed} pieces, but the model has"
      f" {table_size} and lacks {added_tokens.short_list(names)}; fine-tune the"
      " model, which adds these pieces, or put the model's own tokenizer"
      " into its folder."
    )
  return vocabulary


def task_of(config: dict[str, Any], kind: str, no_answer: bool) -> Task:
  """Returns the task of a fine-tuned model, as far as the config describes it.

  Args:
    config: the config of a converted folder.
    kind: the return value of `kind_of`.
    no_answer: True if a question may have no answer, as in SQuAD 2.0.
  """
  saved_task = config["source"].get("fine_tuned")
  if saved_task:
    task = encoded_rows.task_of(saved_task)
  else:
    has_labels = kind in ("classification", "multi_label", "tagging")
    labels = config["labels"] if has_labels else None
    num_outputs = config["head"].get("num_labels") or 1
    if kind == "regression" and num_outputs > 1:
      # The predicted numbers of several outputs have the outputs' names.
      labels = config["labels"] or hf_config.default_labels(num_outputs)
    task = Task(
      name="", kind=kind, labels=tuple(labels or ()), num_choices=1, metrics=()
    )
  return task._replace(metrics=("squad2",)) if no_answer else task


def open_predictor(
  path: str,
  batch_size: int = 32,
  max_length: int = 512,
  top_k: int = 5,
  best: bool = False,
  no_answer: bool = False,
  dtype: str = "float32",
  family: str | None = None,
) -> Predictor:
  """Opens a model to predict with it.

  Args:
    path: the model's path; see `weights.load.open_model`.
    batch_size: see `make_predictor`.
    max_length: see `make_predictor`.
    top_k: see `make_predictor`.
    best: if True, opens a run's checkpoint with the best score.
    no_answer: see `make_predictor`.
    dtype: the dtype of the computation.
    family: the family of a transformers folder; needed if its config.json does
      not name a family.

  Raises:
    UserError: the model cannot be opened, has no head that predicts, or its
      tokenizer is missing or does not fit.
  """
  with Progress(f"opening {path}"):
    model = open_model(
      path, family=family, default_tower="generator", best=best, dtype=dtype
    )
  return make_predictor(model, batch_size, max_length, top_k, no_answer)


def make_predictor(
  model: OpenedModel,
  batch_size: int = 32,
  max_length: int = 512,
  top_k: int = 5,
  no_answer: bool = False,
) -> Predictor:
  """Prepares an opened model to predict.

  Args:
    model: a model with a head. An ELECTRA must have only one tower.
    batch_size: the number of rows in a batch. It is rounded up to a multiple of
      the number of devices.
    max_length: the largest number of tokens in a row. It is lowered to the
      number that the model can read.
    top_k: the number of candidates for each mask.
    no_answer: True if a question may have no answer, as in SQuAD 2.0.

  Raises:
    UserError: the model has no head that predicts, or its tokenizer is missing
      or does not fit.
  """
  config, module, path = model.config, model.module, model.path
  kind = kind_of(config, path)
  if no_answer and kind != "span":
    raise UserError(
      f"{path} is a model for {kind}, and only questions can have no answer;"
      " leave out no_answer."
    )
  vocabulary = vocabulary_of(model)
  num_pieces = vocabulary.vocab_size
  mesh = sharding.make_mesh()
  replicated = NamedSharding(mesh, PartitionSpec())
  top_k = min(top_k, num_pieces)
  predictor = Predictor(
    kind=kind,
    task=task_of(config, kind, no_answer),
    vocabulary=vocabulary,
    max_length=min(max_length, module.encoder.max_length),
    batch_size=batch_size,
    top_k=top_k,
    params=jax.device_put(model.params, replicated),
    step=evaluate_task.jit_replicated(
      _make_step(module, kind, top_k, num_pieces), mesh
    ),
    mesh=mesh,
  )
  return with_batch_size(predictor, batch_size)


def with_batch_size(predictor: Predictor, batch_size: int) -> Predictor:
  """Returns a copy of a predictor with a new number of rows in a batch.

  Args:
    predictor: the predictor.
    batch_size: the number of rows. It is rounded up to a multiple of the number
      of devices.
  """
  num_devices = predictor.mesh.shape["data"]
  return predictor._replace(
    batch_size=-(-batch_size // num_devices) * num_devices
  )


def _make_step(module: Any, kind: str, top_k: int, num_pieces: int) -> Any:
  """Returns `Predictor.step`, not yet jitted."""
  keys = task_heads.input_keys(module)

  def step(params: Any, batch: dict[str, Array]) -> Any:
    inputs = {key: batch[key] for key in keys if key in batch}
    if kind != "fill":
      return module.apply({"params": params}, inputs)
    positions = batch["mlm_positions"]
    log_p = fill_mask.log_probabilities(module, params, inputs, positions)
    # The word table may have more entries than there are pieces. The further
    # entries only round up the size of the table.
    top_log_p, ids = jax.lax.top_k(log_p[:, 0, :num_pieces], top_k)
    # A float32 holds ids exactly, so ids and log-probabilities fit into one
    # array.
    return jnp.stack([top_log_p, ids.astype(jnp.float32)], -1)

  return step


def encode_examples(
  predictor: Predictor, examples: Sequence[dict[str, Any]]
) -> tuple[Rows, np.ndarray | None]:
  """Encodes each example as one row, or as several windows if it is long.

  Args:
    predictor: the model.
    examples: the examples, as `requests.PARSERS` makes them.

  Returns:
    The rows, and the positions of masks, int32 [rows]. The positions are None
    unless the kind is "fill". For kind "choice", a row's index in
    `Rows.example_indices` counts the choices of all examples.
  """
  kind, vocabulary = predictor.kind, predictor.vocabulary
  examples, max_length = list(examples), predictor.max_length
  if kind == "tagging":
    tag_rows = tagging.encode_sentences(
      predictor.task, examples, vocabulary, max_length
    )
    return tag_rows.rows, None
  if kind == "span":
    return questions.encode_questions(
      examples, vocabulary, max_length, stride=None
    ).rows, None
  if kind == "fill":
    texts = [example["text"] for example in examples]
    return windows.encode_masked_texts(texts, vocabulary, max_length)
  texts = [example["texts"] for example in examples]
  if kind == "choice":
    texts = [choice for choices in texts for choice in choices]
  return windows.encode_in_windows(texts, vocabulary, max_length), None


def compute_outputs(
  predictor: Predictor,
  rows: Rows,
  positions: np.ndarray | None,
  report: Callable[[int], None] | None = None,
) -> list[np.ndarray]:
  """Computes the model's output for each row, in the order of the rows.

  Args:
    predictor: the model.
    rows: the rows.
    positions: the position of the mask in each row, int32 [rows]; None if the
      rows have no masks.
    report: called after each batch except the last one, with the number of rows
      done so far.
  """
  if not len(rows.example_indices):
    return []
  # The step reads no labels. So batches of all kinds are made like those of a
  # classification, with -1 (no label) for each row.
  task = predictor.task._replace(kind="classification", num_choices=1)
  rows = rows._replace(labels=np.full(len(rows.example_indices), -1, np.int32))
  pad = layouts.layout_of(predictor.vocabulary).pad
  shorter_lengths = [
    length for length in BUCKETS if length < predictor.max_length
  ]
  batches = Batches(
    task,
    rows,
    pad,
    predictor.batch_size,
    group_by_length=True,
    buckets=(*shorter_lengths, predictor.max_length),
  )
  add_positions = None
  if positions is not None:

    def add_positions(row_indices: np.ndarray) -> dict[str, np.ndarray]:
      """Returns the masks' positions; rows of padding have index -1."""
      row_positions = np.where(row_indices < 0, 0, positions[row_indices])
      return {"mlm_positions": row_positions[:, None].astype(np.int32)}

  with sharding.use_mesh(predictor.mesh):
    step, params = predictor.step, predictor.params
    outputs: list[Any] = []
    num_done = 0
    for row_indices, logits in evaluate_task.run_batches(
      step, params, batches, predictor.mesh, add_positions
    ):
      outputs.append((row_indices, logits))
      if report is not None and len(outputs) > 1:
        # Report the previous batch, and do not wait for the newest one: the
        # device computes it while the next batch is prepared.
        row_indices_done, logits_done = outputs[-2]
        jax.block_until_ready(logits_done)
        num_done += int((row_indices_done >= 0).sum())
        report(num_done)
  return evaluate_task.logits_by_unit(
    jax.device_get(outputs), len(rows.example_indices)
  )


def predict(
  predictor: Predictor,
  examples: Sequence[dict[str, Any]],
  report: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
  """Returns a prediction for each example, in order; see `make_results`.

  Args:
    predictor: the model.
    examples: the examples, as `requests.PARSERS` makes them.
    report: called with the number of examples that are done, batch by batch.
      The number is an estimate from the share of rows that are done: rows run
      in the order of their lengths, and an example may have several rows.
  """
  if not examples:
    return []
  rows, positions = encode_examples(predictor, examples)
  report_rows = None
  if report is not None:

    def report_rows(done: int) -> None:
      report(done * len(examples) // len(rows.example_indices))

  outputs = compute_outputs(predictor, rows, positions, report_rows)
  return make_results(predictor, rows, outputs, list(examples))


def mask_token(predictor: Predictor) -> str | None:
  """Returns the tokenizer's mask token as text; None if it has no mask."""
  mask = predictor.vocabulary.special.mask
  return None if mask is None else predictor.vocabulary.pieces[mask]


def match_labels(
  predictor: Predictor, split: Split, data_path: str
) -> list[int] | None:
  """Finds the column of the model's logits for each label of a split's task.

  Args:
    predictor: the model.
    split: a split of a task folder.
    data_path: the task folder, for messages.

  Returns:
    The index of each label's column; None if the kind has no label names.

  Raises:
    UserError: the model and the data differ in kind, vocabulary or labels.
  """
  task, model_labels = split.task, predictor.task.labels
  if predictor.kind != task.kind:
    raise UserError(
      f"{data_path} has a task of kind {task.kind}, but the model predicts kind"
      f" {predictor.kind}; choose a model that was fine-tuned for this task."
    )
  check_same_pieces(
    split.pieces,
    predictor.vocabulary.pieces,
    data_path,
    "the model",
    "prepare the folder with the model's tokenizer",
  )
  if task.kind not in ("classification", "multi_label", "tagging"):
    return None
  column_indices = model_folder.columns_in_task_order(task.labels, model_labels)
  if column_indices is None:
    raise UserError(
      f"{data_path} has the labels {', '.join(task.labels)}, but the model"
      f" has {', '.join(model_labels)}; choose a model with the same labels."
    )
  return column_indices


def predict_split(
  predictor: Predictor, split: Split, data_path: str
) -> list[Any]:
  """Returns the predictions for a split; see `evaluate_task.split_predictions`.

  Labels are matched by name, because the model may have them in a different
  order than the task. `match_labels` describes the arguments and errors.
  """
  column_indices = match_labels(predictor, split, data_path)
  logits = compute_outputs(predictor, split.rows, positions=None)
  if column_indices is not None:
    logits = [row_logits[..., column_indices] for row_logits in logits]
  return evaluate_task.split_predictions(split, logits)


def chunks(
  examples: Iterator[Example], size: int = CHUNK_SIZE
) -> Iterator[list[Example]]:
  """Yields lists of `size` examples; the last list may be shorter."""
  while chunk := list(itertools.islice(examples, size)):
    yield chunk


# The prediction for one example, as users get it.
Result = dict[str, Any]


def softmax(logits: np.ndarray) -> np.ndarray:
  """Returns float64 probabilities, which sum to 1 along the last axis."""
  logits = np.asarray(logits, np.float64)
  exponentials = np.exp(logits - logits.max(-1, keepdims=True))
  return exponentials / exponentials.sum(-1, keepdims=True)


def make_results(
  predictor: Any, rows: Rows, logits: Sequence[np.ndarray], examples: Examples
) -> list[Result]:
  """Turns logits into a prediction for each example.

  Args:
    predictor: the predictor that computed the logits.
    rows: the rows that `encode_examples` made.
    logits: the outputs of `compute_outputs`.
    examples: the examples that were encoded.

  Raises:
    UserError: a logit is not finite.
  """
  kind, task = predictor.kind, predictor.task
  if kind == "fill":
    predictions.check_finite(*logits)
    return _mask_results(predictor, rows, logits, examples)
  if kind == "span":
    answers = predictions.make_predictions(task, rows, logits, examples)
    return [_answer_result(answer) for answer in answers]
  if kind == "tagging":
    tags = predictions.make_predictions(task, rows, logits, examples)
    tag_p_by_example = tag_probabilities(
      rows, logits, examples, tags, task.labels
    )
    marks_entities = tags_lib.scheme_letters(task.labels) is not None
    return [
      (_entity_result(example, names, tag_p) if marks_entities else {})
      | {"words": example["words"], "tags": names, "probabilities": tag_p}
      for example, names, tag_p in zip(
        examples, tags, tag_p_by_example, strict=True
      )
    ]
  means = predictions.mean_of_windows(rows, np.asarray(logits, np.float64))
  predictions.check_finite(means)
  if kind == "regression":
    return [_score_result(task.labels, scores) for scores in means]
  if kind == "choice":
    choice_counts = [len(example["texts"]) for example in examples]
    scores_by_example = np.split(means[:, 0], np.cumsum(choice_counts)[:-1])
    return [_choice_result(softmax(scores)) for scores in scores_by_example]
  if kind == "multi_label":
    # Each label has its own sigmoid.
    return [
      _labels_result(task.labels, 1 / (1 + np.exp(-label_logits)))
      for label_logits in means
    ]
  return [
    _class_result(task.labels, probabilities)
    for probabilities in softmax(means)
  ]


def _class_result(labels: Sequence[str], probabilities: np.ndarray) -> Result:
  """Makes the result of a classification from its probabilities."""
  best_index = int(probabilities.argmax())
  return {
    "label": labels[best_index],
    "probability": float(probabilities[best_index]),
    "probabilities": dict(zip(labels, probabilities.tolist(), strict=True)),
  }


def _score_result(names: Sequence[str], scores: np.ndarray) -> Result:
  """Makes the result of a regression with one output or several."""
  if len(scores) == 1:
    return {"score": float(scores[0])}
  return {"scores": dict(zip(names, scores.tolist(), strict=True))}


def _labels_result(labels: Sequence[str], probabilities: np.ndarray) -> Result:
  """Makes the result of a classification with several labels."""
  p_by_label = dict(zip(labels, probabilities.tolist(), strict=True))
  predicted_labels = [label for label, p in p_by_label.items() if p > 0.5]
  return {"labels": predicted_labels, "probabilities": p_by_label}


def _choice_result(probabilities: np.ndarray) -> Result:
  """Makes the result of a multiple choice from its probabilities."""
  best_index = int(probabilities.argmax())
  return {
    "choice": best_index,
    "probability": float(probabilities[best_index]),
    "probabilities": probabilities.tolist(),
  }


def _answer_result(answer: dict[str, Any]) -> Result:
  """Makes the result of a question from its predicted answer."""
  null_odds_entry = {
    key: answer[key] for key in ("null_odds",) if key in answer
  }

  def span_of(text: str) -> dict[str, int | None]:
    """Returns the characters of an answer in the context; None for ""."""
    start = answer["starts"].get(text)
    return {"start": start, "end": None if start is None else start + len(text)}

  nbest = [
    {"text": candidate["text"], "probability": candidate["probability"]}
    | span_of(candidate["text"])
    for candidate in answer["nbest"]
  ]
  probabilities = {
    candidate["text"]: candidate["probability"] for candidate in nbest
  }
  text = answer["text"]
  probability = probabilities.get(text, 0.0)
  if null_odds_entry and "" not in probabilities:
    # The probabilities of a beam assume that an answer exists. `null_odds` is
    # the logit of the event that no answer exists.
    p_none, p_exists = softmax(np.array([answer["null_odds"], 0.0])).tolist()
    probability = probability * p_exists if text else p_none
  result = {"answer": text, "probability": probability} | span_of(text)
  return result | null_odds_entry | {"nbest": nbest}


def _entity_result(
  example: dict[str, Any],
  tags: Sequence[str | None],
  probabilities: Sequence[float | None],
) -> Result:
  """Joins the tags of neighbouring words into entities.

  Args:
    example: an example with `words`, and with `text` and `spans` if the words
      were split from a text. Words without a text are joined with spaces.
    tags: the tag of each word.
    probabilities: the probability of each tag.

  Returns:
    `entities`: a list of entities with `text`, `label`, `start`, `end` and
    `probability`. `start` and `end` count characters of the text. The
    probability is the mean over the entity's words.
  """
  text, spans = example.get("text"), example.get("spans")
  if text is None or spans is None:
    words = text_inputs.text_of_words("", example["words"])
    text, spans = words.text, words.word_spans
  entities = []
  for label, begin, end in tags_lib.entities(tags):
    char_begin, char_end = spans[begin][0], spans[end - 1][1]
    mean_probability = np.mean([p or 0.0 for p in probabilities[begin:end]])
    entities.append(
      {
        "text": text[char_begin:char_end],
        "label": label,
        "start": char_begin,
        "end": char_end,
        "probability": float(mean_probability),
      }
    )
  return {"entities": entities}


def tag_probabilities(
  rows: Rows,
  logits: Sequence[np.ndarray],
  examples: Examples,
  tags: Sequence[Sequence[str | None]],
  labels: Sequence[str],
) -> list[list[float | None]]:
  """Returns the probability of each word's tag.

  `tagging.encode_sentences` has chosen one window for each word, whose logits
  are used. A word without pieces has the tag O with probability 1. If the model
  has no tag O, the word's tag and probability are None.

  Args:
    rows: the rows of the examples.
    logits: float32 [tokens, tags] of each row.
    examples: the examples.
    tags: the predicted tag of each word of each example.
    labels: the names of the tags, in the order of the logits.
  """
  index_by_tag = {name: i for i, name in enumerate(labels)}
  probabilities: list[list[float | None]] = [
    [1.0 if tag else None for tag in example_tags] for example_tags in tags
  ]
  for i, example_index in enumerate(rows.example_indices):
    word_indices = rows.offsets[rows.starts[i] : rows.starts[i + 1], 0]
    positions = np.flatnonzero(word_indices >= 0)
    p_of_words = softmax(logits[i][positions])
    for word_index, p_of_tags in zip(
      word_indices[positions], p_of_words, strict=True
    ):
      tag = tags[example_index][word_index]
      probabilities[example_index][word_index] = float(
        p_of_tags[index_by_tag[tag]]
      )
  return probabilities


def _mask_results(
  predictor: Any, rows: Rows, outputs: Sequence[np.ndarray], examples: Examples
) -> list[Result]:
  """Makes the results of texts with masks: candidates for each mask."""
  results: list[Result] = [{"masks": []} for _ in examples]
  pieces = predictor.vocabulary.pieces
  for example_index, candidate_pairs in zip(
    rows.example_indices, outputs, strict=True
  ):
    mask_candidates = [
      {"token": pieces[int(token_id)], "probability": float(np.exp(log_p))}
      for log_p, token_id in candidate_pairs
    ]
    results[example_index]["masks"].append(mask_candidates)
  return results
