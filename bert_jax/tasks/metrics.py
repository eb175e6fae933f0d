"""Computes the official metrics of tasks over whole splits.

A metric takes the predictions of all examples, from
`predictions.make_predictions`. A metric is computed once for all examples,
because the mean of its values in batches is a different number. Scores are
shares or correlations, as in scikit-learn, scipy and seqeval. SQuAD's scores
are in percent, as its official scripts print them.

Every metric is a function of the task, the predictions and the examples, which
must all have labels. It returns name -> score.
"""

import importlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_jax.messages import Progress, UserError
from bert_jax.tasks import squad_metrics
from bert_jax.tasks.encoded_rows import Examples, Task, gold_field
from bert_jax.tasks.files import tags

Scores = dict[str, float]
Metric = Callable[[Task, Sequence[Any], Examples], Scores]


def _import_module(name: str, package: str) -> Any:
  """Imports a module; raises a UserError if `package` is not installed."""
  try:
    return importlib.import_module(name)
  except ImportError as e:
    raise UserError(
      f"the metrics need {package}, which is not installed: pip install"
      f" 'bert_jax[finetune]', or pip install {package}."
    ) from e


def gold_label(task: Task, example: dict[str, Any]) -> Any:
  """Returns the label of an example; None if the example has no label.

  For a span task, the label is a list of the texts of the right answers. For
  every other kind, see the fields of examples in `encoded_rows`.
  """
  if task.kind == "span" and example["answers"] is not None:
    return [answer["text"] for answer in example["answers"]]
  return example[gold_field(task)]


def evaluate(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Computes all metrics of a task.

  Args:
    task: the task.
    predictions: one prediction for each example.
    examples: the raw fields of the examples.

  Returns:
    name -> score; {} if no example has a label. The first score is the main
    score of the task's first metric, and decides which checkpoint is the best.
    The last score, `examples`, is the number of examples with a label.

  Raises:
    ValueError: the numbers of predictions and examples differ, a label is
      unknown, a metric does not exist or does not fit the task, or a package is
      missing.
  """
  if len(predictions) != len(examples):
    raise UserError(
      f"task {task.name}: there are {len(predictions)} predictions for"
      f" {len(examples)} examples; give one for each example, in order."
    )
  unknown_metrics = set(task.metrics) - METRICS.keys()
  if unknown_metrics:
    raise UserError(
      f"task {task.name}: there is no metric {min(unknown_metrics)!r}; the"
      f" metrics are {', '.join(METRICS)}."
    )
  labelled_indices = [
    i
    for i, example in enumerate(examples)
    if gold_label(task, example) is not None
  ]
  if not labelled_indices:
    return {}
  _check_labels(task, predictions, examples)
  labelled_predictions = [predictions[i] for i in labelled_indices]
  labelled_examples = [examples[i] for i in labelled_indices]
  scores: Scores = {}
  for name in task.metrics:
    scores |= METRICS[name](task, labelled_predictions, labelled_examples)
  return scores | {"examples": float(len(labelled_indices))}


def _check_labels(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> None:
  """Raises ValueError for a label or a prediction that the task does not have.

  None and, for tagging, "O" are always allowed.
  """
  if not task.labels:
    return
  allowed_labels = {*task.labels, None} | (
    {"O"} if task.kind == "tagging" else set()
  )
  for i, (prediction, example) in enumerate(
    zip(predictions, examples, strict=True)
  ):
    for role, value in (
      ("label", gold_label(task, example)),
      ("prediction", prediction),
    ):
      unknown_labels = (
        set(value if isinstance(value, list) else [value]) - allowed_labels
      )
      if unknown_labels:
        raise UserError(
          f"task {task.name}: the {role} {min(unknown_labels)!r} of example {i}"
          f" is not one of its labels {', '.join(task.labels)}."
        )


def _labels_and_predictions(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the labels and the predictions of N examples or words, [N] each."""
  golds = [gold_label(task, example) for example in examples]
  if any(isinstance(label_list, list) for label_list in golds):
    _check_lengths(task, predictions, golds)
    golds = [label for label_list in golds for label in label_list]
    predictions = [label for label_list in predictions for label in label_list]
  return np.array(golds), np.array(predictions)


def _check_lengths(
  task: Task, predictions: Sequence[Any], golds: Sequence[Any]
) -> None:
  """Raises ValueError unless each example has a prediction for each label."""
  for i, (predicted_labels, gold_labels) in enumerate(
    zip(predictions, golds, strict=True)
  ):
    if len(predicted_labels) != len(gold_labels):
      raise UserError(
        f"task {task.name}: example {i} has {len(gold_labels)} labels and"
        f" {len(predicted_labels)} predictions; each needs one."
      )


def accuracy(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Computes the share of examples, words or pieces with a right prediction."""
  golds, predicted = _labels_and_predictions(task, predictions, examples)
  return {"accuracy": float((golds == predicted).mean())}


def masked_accuracy(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Computes the share of right predictions for the hidden pieces of all texts.

  Each prediction, and the `label` of each example, is a list of pieces or of
  ids.
  """
  return {"masked_accuracy": accuracy(task, predictions, examples)["accuracy"]}


def f1(task: Task, predictions: Sequence[Any], examples: Examples) -> Scores:
  """Computes F1 of the positive class, which is the second of two labels."""
  if len(task.labels) != 2:
    raise UserError(
      f"task {task.name}: f1 needs two classes, and there are"
      f" {len(task.labels)}; use f1_macro."
    )
  golds, predicted = _labels_and_predictions(task, predictions, examples)
  positive = task.labels[1]
  score = _import_module("sklearn.metrics", "scikit-learn").f1_score(
    golds == positive, predicted == positive, zero_division=0.0
  )
  return {"f1": float(score)}


def f1_macro(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Computes the mean F1 of all classes that occur in labels or predictions."""
  score = _import_module("sklearn.metrics", "scikit-learn").f1_score(
    *_labels_and_predictions(task, predictions, examples),
    average="macro",
    zero_division=0.0,
  )
  return {"f1_macro": float(score)}


def f1_micro(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Computes three scores for examples with several labels.

  `f1_micro` is F1 over the labels of all examples together. `f1_macro` is the
  mean of F1 over the task's labels; F1 is 0 for a label that occurs neither in
  labels nor in predictions. `exact` is the share of examples without any error.
  """
  label_indices = {name: i for i, name in enumerate(task.labels)}
  true_and_predicted = np.zeros((2, len(examples), len(task.labels)), bool)
  golds = [gold_label(task, example) for example in examples]
  for has_label, label_lists in zip(
    true_and_predicted, (golds, predictions), strict=True
  ):
    for example_has_label, names in zip(has_label, label_lists, strict=True):
      example_has_label[[label_indices[name] for name in names]] = True
  f1_score = _import_module("sklearn.metrics", "scikit-learn").f1_score
  means = {
    f"f1_{average}": float(
      f1_score(*true_and_predicted, average=average, zero_division=0.0)
    )
    for average in ("micro", "macro")
  }
  return means | {
    "exact": float(
      (true_and_predicted[0] == true_and_predicted[1]).all(-1).mean()
    )
  }


def matthews(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Computes Matthews' correlation (CoLA).

  The correlation is 0 if all predictions or all labels are equal.
  """
  score = _import_module("sklearn.metrics", "scikit-learn").matthews_corrcoef(
    *_labels_and_predictions(task, predictions, examples)
  )
  return {"matthews": float(score)}


def pearson(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Computes Pearson's correlation.

  The correlation is NaN if all predictions or all labels are equal.
  """
  return {"pearson": _correlation("pearsonr", task, predictions, examples)}


def spearman(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Computes Spearman's rank correlation, which is NaN when `pearson` is."""
  return {"spearman": _correlation("spearmanr", task, predictions, examples)}


def _correlation(
  name: str, task: Task, predictions: Sequence[Any], examples: Examples
) -> float:
  """Computes `scipy.stats.NAME`; NaN if all labels or predictions are equal."""
  golds, predicted = _labels_and_predictions(task, predictions, examples)
  if np.ptp(predicted) == 0 or np.ptp(golds) == 0:
    return float("nan")
  stats = _import_module("scipy.stats", "scipy")
  correlation = getattr(stats, name)
  return float(
    correlation(golds.astype(np.float64), predicted.astype(np.float64))[0]
  )


def _mean_of(name: str, *metrics: Metric) -> Metric:
  """Returns a metric: the mean of the scores of `metrics`, and these scores."""

  def mean(
    task: Task, predictions: Sequence[Any], examples: Examples
  ) -> Scores:
    scores: Scores = {}
    for metric in metrics:
      scores |= metric(task, predictions, examples)
    return {name: float(np.mean(list(scores.values())))} | scores

  return mean


def multirc(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Computes SuperGLUE's score of MultiRC, the mean of `f1a` and `em`.

  `f1a` is F1 over all possible answers. `em` is the share of questions for
  which all predictions are right. All examples of a question have the same
  `group`.
  """
  golds, predicted = _labels_and_predictions(task, predictions, examples)
  right_by_question: dict[Any, bool] = {}
  for example, is_right in zip(examples, golds == predicted, strict=True):
    group = example["group"]
    right_by_question[group] = right_by_question.get(group, True) and bool(
      is_right
    )
  f1a = f1(task, predictions, examples)["f1"]
  em = float(np.mean(list(right_by_question.values())))
  return {"multirc": (f1a + em) / 2, "f1a": f1a, "em": em}


def record(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Computes SuperGLUE's score of ReCoRD, the mean of `f1` and `em`.

  All examples of a query have the same `group`. The answer to a query is the
  `answer` of its first example with the prediction "true" (the second label),
  or "" if no example has this prediction.
  """
  answers: dict[Any, str] = {}
  golds: dict[Any, list[str]] = {}
  for example, predicted in zip(examples, predictions, strict=True):
    golds[example["group"]] = example["answers"]
    if predicted == task.labels[1]:
      answers.setdefault(example["group"], example["answer"])
  em_f1_pairs = [
    squad_metrics.best_scores(answers.get(group, ""), golds[group], "1.1")
    for group in golds
  ]
  em, mean_f1 = (float(mean_score) for mean_score in np.mean(em_f1_pairs, 0))
  return {"record": (mean_f1 + em) / 2, "f1": mean_f1, "em": em}


def tagging_f1(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Computes F1, precision and recall of entities by the rule of conlleval.

  conlleval is CoNLL-2003's script. By its rule an entity begins at B-, and also
  at I- if the tag before the I- is O or has a different type. Tags of all
  schemes in `files/tags.py` are read as IOBES.
  """
  return _entity_scores(task, predictions, examples)


def tagging_f1_strict(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Computes `tagging_f1` by strict rules (seqeval's mode "strict").

  In IOB2, an entity begins only at B-. If the task has tags for an entity's
  end, all tags of an entity must follow IOBES.
  """
  return _entity_scores(task, predictions, examples, strict=True)


def _entity_scores(
  task: Task,
  predictions: Sequence[Any],
  examples: Examples,
  strict: bool = False,
) -> Scores:
  """Computes F1, precision and recall of entities with seqeval."""
  golds = [list(gold_label(task, example)) for example in examples]
  predicted = [list(tag_list) for tag_list in predictions]
  _check_lengths(task, predicted, golds)
  tag_names = {
    tag or "O" for sentence_tags in golds + predicted for tag in sentence_tags
  }
  iobes_by_tag: dict[str, str] = {}
  for name in sorted(tag_names | {*task.labels}):
    iobes = tags.to_iobes(name)
    if iobes is None:
      raise UserError(
        f"task {task.name}: {name!r} is not O and does not begin with B- or I-,"
        " so it marks no entity; use the metric accuracy."
      )
    iobes_by_tag[name] = iobes
  golds = [
    [iobes_by_tag[tag] for tag in sentence_tags] for sentence_tags in golds
  ]
  predicted = [
    [iobes_by_tag[tag or "O"] for tag in sentence_tags]
    for sentence_tags in predicted
  ]
  seqeval = _import_module("seqeval.metrics", "seqeval")
  suffix, options = "", {}
  if strict:
    schemes = _import_module("seqeval.scheme", "seqeval")
    has_end_tags = any(tag[:2] in ("E-", "S-") for tag in iobes_by_tag.values())
    scheme = schemes.IOBES if has_end_tags else schemes.IOB2
    suffix, options = "_strict", {"mode": "strict", "scheme": scheme}
  score_functions = {
    "tagging_f1": seqeval.f1_score,
    "precision": seqeval.precision_score,
    "recall": seqeval.recall_score,
  }
  return {
    name + suffix: float(score(golds, predicted, zero_division=0, **options))
    for name, score in score_functions.items()
  }


def squad(task: Task, predictions: Sequence[Any], examples: Examples) -> Scores:
  """Computes SQuAD 1.1's scores; `squad` is F1. See `squad_metrics.squad`."""
  scores = squad_metrics.squad(
    [prediction["text"] for prediction in predictions],
    [gold_label(task, example) for example in examples],
  )
  return {"squad": scores["f1"]} | scores


def squad2(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Computes SQuAD 2.0's scores; `squad2` is F1. See `squad_metrics.squad2`.

  The search for the best threshold takes each question's best answer that is
  not empty. So the search gives the same threshold, whatever threshold the
  predictions were made with.
  """
  return _squad2(task, predictions, examples, "reachable")


def squad2_official(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Computes `squad2` with the official search for the best threshold."""
  return _squad2(task, predictions, examples, "official")


def _squad2(
  task: Task, predictions: Sequence[Any], examples: Examples, search: str
) -> Scores:
  """Computes SQuAD 2.0's scores with one of `squad_metrics.SEARCHES`."""
  golds = [gold_label(task, example) for example in examples]
  scores = squad_metrics.squad2(
    [prediction["text"] for prediction in predictions], golds
  )
  searched_scores = squad_metrics.squad2(
    [prediction["best"] for prediction in predictions],
    golds,
    [prediction["null_odds"] for prediction in predictions],
    search=search,
  )
  scores |= {
    score_name: score
    for score_name, score in searched_scores.items()
    if score_name.startswith("best_")
  }
  return {"squad2": scores["f1"]} | scores


def score_warnings(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> list[str]:
  """Returns warnings about scores that say little.

  For the arguments see `evaluate`.
  """
  labelled_pairs = [
    (gold_label(task, example), prediction)
    for example, prediction in zip(examples, predictions, strict=True)
    if gold_label(task, example) is not None
  ]
  if not labelled_pairs or task.kind == "span":
    return []
  golds: list[Any] = [label for label, _ in labelled_pairs]
  predicted = [prediction for _, prediction in labelled_pairs]
  first_metric = task.metrics[0] if task.metrics else "the metric"
  if task.kind == "tagging":
    if first_metric not in ("tagging_f1", "tagging_f1_strict"):
      gold_tags, predicted_tags = (
        list(itertools.chain(*rows)) for rows in (golds, predicted)
      )
      return _warnings_if_all_equal(
        first_metric, gold_tags, predicted_tags, "words"
      )
    warnings = []
    for adjective, tag_lists in (("predicted", predicted), ("gold", golds)):
      if all((tag or "O") == "O" for tag_list in tag_lists for tag in tag_list):
        warnings.append(
          f"all {adjective} tags are O, so there is no entity: {first_metric}"
          " is 0."
        )
    return warnings
  if task.kind == "multi_label":
    golds, predicted = (list(map(tuple, rows)) for rows in (golds, predicted))
  return _warnings_if_all_equal(first_metric, golds, predicted, "examples")


def _warnings_if_all_equal(
  metric: str, golds: Sequence[Any], predicted: Sequence[Any], unit: str
) -> list[str]:
  """Returns warnings if all predictions, or all labels, are equal.

  Args:
    metric: the name of the task's first metric.
    golds: the labels.
    predicted: the predictions.
    unit: "words" or "examples": the things that have one label each.
  """
  warnings = []
  verdict = " is not defined" if metric in CORRELATIONS else " says little"
  for role, labels in (("predictions", predicted), ("labels", golds)):
    if len(labels) > 1 and len(set(labels)) == 1:
      label = list(labels[0]) if type(labels[0]) is tuple else labels[0]
      warnings.append(
        f"all {role} of {len(labels)} {unit} are {label!r:.40}: {metric}"
        f"{verdict}."
      )
  return warnings


# The metrics that are not defined if all labels are equal.
CORRELATIONS = ("pearson", "spearman", "pearson_spearman")
METRICS: dict[str, Metric] = {
  "accuracy": accuracy,
  "f1": f1,
  "f1_macro": f1_macro,
  "f1_micro": f1_micro,
  "matthews": matthews,
  "pearson": pearson,
  "spearman": spearman,
  "accuracy_f1": _mean_of("accuracy_f1", accuracy, f1),
  "accuracy_f1_macro": _mean_of("accuracy_f1_macro", accuracy, f1_macro),
  "pearson_spearman": _mean_of("pearson_spearman", pearson, spearman),
  "multirc": multirc,
  "record": record,
  "tagging_f1": tagging_f1,
  "tagging_f1_strict": tagging_f1_strict,
  "squad": squad,
  "squad2": squad2,
  "squad2_official": squad2_official,
  "masked_accuracy": masked_accuracy,
}


def check_packages(task: Task) -> None:
  """Raises ValueError if a package for a task's metrics is not installed.

  Call this function before the model runs, so that its results are not lost.
  """
  with Progress(f"importing the metrics of task {task.name}"):
    score_names(task)


def score_names(task: Task) -> list[str]:
  """Returns the names of all scores that `evaluate` may give for a task.

  The function evaluates invented examples with right predictions.

  Raises:
    ValueError: a package for the task's metrics is not installed.
  """
  examples: Examples = []
  right_predictions: list[Any] = []
  for number, text in enumerate(task.labels or ("0", "1")):
    example: dict[str, Any] = dict(words=[text], label=text, tags=[text])
    example |= dict(group=str(number), answer="x", answers=["x"])
    if task.kind == "multi_label":
      example["label"] = [text]
    if task.kind == "regression":
      example["label"] = float(number)
    if task.kind == "span":
      # Every second question has no answer.
      text = "x" * (number % 2)
      example["answers"] = [dict(text=text)] if text else []
    examples.append(example)
    answer = dict(text=text, best=text, null_odds=0.0)
    right_predictions.append(
      answer if task.kind == "span" else gold_label(task, example)
    )
  return [*evaluate(task, right_predictions, examples)]
