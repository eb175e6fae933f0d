"""Official metrics of tasks, over the whole set.

A metric takes the predictions of all examples, as
`predictions.make_predictions` returns them, and is computed once, because the
mean over batches is another number. Shares are between 0 and 1, as in
scikit-learn, scipy and seqeval. SQuAD's numbers are in percent, as its official
scripts print them.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_jax.messages import UserError
from bert_jax.tasks import squad_metrics
from bert_jax.tasks.encoded_rows import Examples, Task, gold_field
from bert_jax.tasks.files import tags

Scores = dict[str, float]
Metric = Callable[[Task, Sequence[Any], Examples], Scores]


def _library(name: str, package: str) -> Any:
  try:
    return importlib.import_module(name)
  except ImportError as e:
    raise UserError(
      f"the metrics need {package}, which is not installed: pip install"
      f" 'bert_jax[finetune]', or pip install {package}."
    ) from e


def gold(task: Task, example: dict[str, Any]) -> Any:
  """What is right for an example, None where the example has no label.

  A class's or choice's name, a number, the names of all labels that apply, a
  tag for each word, or the texts of the right answers ([]: there is none);
  `rows` has the fields.
  """
  if task.kind == "span" and example["answers"] is not None:
    return [answer["text"] for answer in example["answers"]]
  return example[gold_field(task)]


def evaluate(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """All metrics of a task; {} if no example has a label.

  The first number is that of the task's first metric, under that metric's
  name, and decides what is best; `examples` is how many were scored, those
  with a label.

  Raises:
    ValueError: another number of predictions than of examples, a metric that
      does not exist or does not fit, or a missing package.
  """
  if len(predictions) != len(examples):
    raise UserError(
      f"task {task.name}: {len(predictions)} predictions of {len(examples)}"
      " examples; each needs one, in order."
    )
  unknown = set(task.metrics) - METRICS.keys()
  if unknown:
    raise UserError(
      f"task {task.name}: no metric {min(unknown)!r}; there are"
      f" {', '.join(METRICS)}."
    )
  labelled = [i for i, e in enumerate(examples) if gold(task, e) is not None]
  if not labelled:
    return {}
  _check_names(task, predictions, examples)
  chosen = [predictions[i] for i in labelled], [examples[i] for i in labelled]
  result: Scores = {}
  for name in task.metrics:
    result |= METRICS[name](task, *chosen)
  return result | {"examples": float(len(labelled))}


def _check_names(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> None:
  """Raises ValueError for a name, right or predicted, that is no label's."""
  if not task.labels:
    return
  names = {*task.labels, None} | ({"O"} if task.kind == "tagging" else set())
  for i, (p, example) in enumerate(zip(predictions, examples, strict=True)):
    for kind, x in (("label", gold(task, example)), ("prediction", p)):
      other = set(x if isinstance(x, list) else [x]) - names
      if other:
        raise UserError(
          f"task {task.name}: the {kind} {min(other)!r} of example {i} is none"
          f" of its labels {', '.join(task.labels)}."
        )


def _pairs(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> tuple[np.ndarray, np.ndarray]:
  """Returns (golds, predicted), an item for each example or word."""
  golds = [gold(task, example) for example in examples]
  if any(isinstance(r, list) for r in golds):
    _check_lengths(task, predictions, golds)
    golds = [item for r in golds for item in r]
    predictions = [item for p in predictions for item in p]
  return np.array(golds), np.array(predictions)


def _check_lengths(
  task: Task, predictions: Sequence[Any], golds: Sequence[Any]
) -> None:
  for i, (row, gold_row) in enumerate(zip(predictions, golds, strict=True)):
    if len(row) != len(gold_row):
      raise UserError(
        f"task {task.name}: example {i} has {len(gold_row)} labels and"
        f" {len(row)} predictions; each needs one."
      )


def accuracy(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Share of examples, or of all words or hidden pieces, that are right."""
  golds, predicted = _pairs(task, predictions, examples)
  return {"accuracy": float((golds == predicted).mean())}


def masked_accuracy(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Share of hidden pieces of all texts that are guessed.

  Predictions and `label` of the examples are a list of pieces or of ids each.
  """
  return {"masked_accuracy": accuracy(task, predictions, examples)["accuracy"]}


def f1(task: Task, predictions: Sequence[Any], examples: Examples) -> Scores:
  """F1 of the positive class, which is the second of two labels."""
  if len(task.labels) != 2:
    raise UserError(
      f"task {task.name}: f1 is of two classes, not {len(task.labels)}; use"
      " f1_macro."
    )
  golds, predicted = _pairs(task, predictions, examples)
  positive = task.labels[1]
  value = _library("sklearn.metrics", "scikit-learn").f1_score(
    golds == positive, predicted == positive, zero_division=0.0
  )
  return {"f1": float(value)}


def f1_macro(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Mean F1 of the classes that are right or predicted somewhere."""
  value = _library("sklearn.metrics", "scikit-learn").f1_score(
    *_pairs(task, predictions, examples), average="macro", zero_division=0.0
  )
  return {"f1_macro": float(value)}


def f1_micro(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Of several labels at once: F1 of all, mean of the labels', all of a text.

  `f1_micro` counts the labels of all examples together, `f1_macro` is the mean
  over the task's labels (0 for one that is nowhere right or predicted), `exact`
  the share of examples all labels of which are right.
  """
  places = {name: i for i, name in enumerate(task.labels)}
  both = np.zeros((2, len(examples), len(places)), bool)
  golds = [gold(task, example) for example in examples]
  for marks, sets in zip(both, (golds, predictions), strict=True):
    for mark, names in zip(marks, sets, strict=True):
      mark[[places[name] for name in names]] = True
  score = _library("sklearn.metrics", "scikit-learn").f1_score
  means = {
    f"f1_{mean}": float(score(*both, average=mean, zero_division=0.0))
    for mean in ("micro", "macro")
  }
  return means | {"exact": float((both[0] == both[1]).all(-1).mean())}


def matthews(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Matthews' correlation, 0 if all predictions are the same (CoLA)."""
  value = _library("sklearn.metrics", "scikit-learn").matthews_corrcoef(
    *_pairs(task, predictions, examples)
  )
  return {"matthews": float(value)}


def pearson(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Pearson's correlation, NaN if all predictions, or labels, are the same."""
  return {"pearson": _correlation("pearsonr", task, predictions, examples)}


def spearman(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Spearman's rank correlation, NaN where Pearson's is."""
  return {"spearman": _correlation("spearmanr", task, predictions, examples)}


def _correlation(
  name: str, task: Task, predictions: Sequence[Any], examples: Examples
) -> float:
  golds, predicted = _pairs(task, predictions, examples)
  if np.ptp(predicted) == 0 or np.ptp(golds) == 0:
    return float("nan")
  stats = _library("scipy.stats", "scipy")
  correlation = getattr(stats, name)
  return float(
    correlation(golds.astype(np.float64), predicted.astype(np.float64))[0]
  )


def _mean_of(name: str, *parts: Metric) -> Metric:
  """A metric that is the mean of others, as GLUE and SuperGLUE report it."""

  def mean(
    task: Task, predictions: Sequence[Any], examples: Examples
  ) -> Scores:
    scores: Scores = {}
    for part in parts:
      scores |= part(task, predictions, examples)
    return {name: float(np.mean(list(scores.values())))} | scores

  return mean


def multirc(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """SuperGLUE's MultiRC, the mean of `f1a` and `em`.

  `f1a` is F1 over all answers, `em` the share of questions (examples of one
  `group`) all answers of which are right.
  """
  golds, predicted = _pairs(task, predictions, examples)
  questions: dict[Any, bool] = {}
  for example, same in zip(examples, golds == predicted, strict=True):
    group = example["group"]
    questions[group] = questions.get(group, True) and bool(same)
  f1a = f1(task, predictions, examples)["f1"]
  em = float(np.mean(list(questions.values())))
  return {"multirc": (f1a + em) / 2, "f1a": f1a, "em": em}


def record(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """SuperGLUE's ReCoRD, the mean of `f1` and `em`.

  The answer to a query (examples of one `group`) is that of its first example
  of the positive class, which is the second label.
  """
  texts, golds = {}, {}
  for example, predicted in zip(examples, predictions, strict=True):
    golds[example["group"]] = example["answers"]
    if predicted == task.labels[1]:
      texts.setdefault(example["group"], example["answer"])
  pairs = [
    squad_metrics.best(texts.get(group, ""), golds[group], "1.1")
    for group in golds
  ]
  em, f = (float(x) for x in np.mean(pairs, 0))
  return {"record": (f + em) / 2, "f1": f, "em": em}


def tagging_f1(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """F1, precision and recall of entities by the rule of conlleval.

  The rule of CoNLL-2003's script: an entity begins at B-, or at I- after
  another type or O. Tags of every scheme in `tags` are read as IOBES.
  """
  return _entities(task, predictions, examples)


def tagging_f1_strict(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """Computes `tagging_f1` by the strict rules of the scheme (seqeval's mode).

  In IOB2 an entity begins only at B-. If the task has tags for an entity's end,
  all tags of an entity must follow IOBES.
  """
  return _entities(task, predictions, examples, strict=True)


def _entities(
  task: Task,
  predictions: Sequence[Any],
  examples: Examples,
  strict: bool = False,
) -> Scores:
  golds = [list(gold(task, example)) for example in examples]
  predicted = [list(p) for p in predictions]
  _check_lengths(task, predicted, golds)
  names = {tag or "O" for row in golds + predicted for tag in row}
  by_name = {n: tags.to_iobes(n) for n in sorted(names | {*task.labels})}
  for name, tag in by_name.items():
    if tag is None:
      raise UserError(
        f"task {task.name}: {name!r} is neither O nor begins with B- or I-, and"
        " entities cannot be told; use the metric accuracy."
      )
  golds = [[by_name[tag] for tag in row] for row in golds]
  predicted = [[by_name[tag or "O"] for tag in row] for row in predicted]
  seqeval = _library("seqeval.metrics", "seqeval")
  suffix, options = "", {}
  if strict:
    schemes = _library("seqeval.scheme", "seqeval")
    ends = any(tag[:2] in ("E-", "S-") for tag in by_name.values())
    scheme = schemes.IOBES if ends else schemes.IOB2
    suffix, options = "_strict", {"mode": "strict", "scheme": scheme}
  parts = {"tagging_f1": "f1", "precision": "precision", "recall": "recall"}
  return {
    name + suffix: float(
      getattr(seqeval, f"{part}_score")(
        golds, predicted, zero_division=0, **options
      )
    )
    for name, part in parts.items()
  }


def squad(task: Task, predictions: Sequence[Any], examples: Examples) -> Scores:
  """SQuAD 1.1: `squad` is its F1; see `squad_metrics.squad`."""
  scores = squad_metrics.squad(
    [p["text"] for p in predictions], [gold(task, e) for e in examples]
  )
  return {"squad": scores["f1"]} | scores


def squad2(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> Scores:
  """SQuAD 2.0: `squad2` is its F1; see `squad_metrics.squad2`.

  The best threshold is that of the best answer that is not empty, so that it
  does not depend on the threshold of the predictions.
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
  golds = [gold(task, example) for example in examples]
  scores = squad_metrics.squad2([p["text"] for p in predictions], golds)
  swept = squad_metrics.squad2(
    [p["best"] for p in predictions],
    golds,
    [p["null_odds"] for p in predictions],
    search=search,
  )
  scores |= {k: v for k, v in swept.items() if k.startswith("best_")}
  return {"squad2": scores["f1"]} | scores


def doubts(
  task: Task, predictions: Sequence[Any], examples: Examples
) -> list[str]:
  """Returns warnings about metrics that are not meaningful.

  The arguments are those of `evaluate`.
  """
  labelled = [
    (gold(task, example), prediction)
    for example, prediction in zip(examples, predictions, strict=True)
    if gold(task, example) is not None
  ]
  if not labelled or task.kind == "span":
    return []
  golds, predicted = zip(*labelled, strict=True)
  first = task.metrics[0] if task.metrics else "the metric"
  if task.kind == "tagging":
    if first not in ("tagging_f1", "tagging_f1_strict"):
      return _doubt_constants(
        first, sum(golds, []), sum(predicted, []), "words"
      )
    lines = []
    for whose, rows in (("predicted", predicted), ("right", golds)):
      if all((tag or "O") == "O" for row in rows for tag in row):
        lines.append(f"no {whose} tag is an entity's, all are O: {first} is 0.")
    return lines
  if task.kind == "multi_label":
    golds, predicted = (list(map(tuple, rows)) for rows in (golds, predicted))
  return _doubt_constants(first, golds, predicted, "examples")


def _doubt_constants(
  metric: str, golds: Sequence[Any], predicted: Sequence[Any], what: str
) -> list[str]:
  """Returns warnings if all predictions, or all labels, are the same."""
  lines = []
  undefined = " is not defined" if metric in CORRELATIONS else " says little"
  for whose, values in (("predictions", predicted), ("labels", golds)):
    if len(values) > 1 and len(set(values)) == 1:
      value = list(values[0]) if type(values[0]) is tuple else values[0]
      lines.append(
        f"all {whose} of {len(values)} {what} are {value!r:.40}: {metric}"
        f"{undefined}."
      )
  return lines


# Metrics that are not defined if all examples have the same label.
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

  Call it before the model runs.
  """
  names(task)


def names(task: Task) -> list[str]:
  """Names of all numbers that `evaluate` may give for a task."""
  examples: Examples = []
  right: list[Any] = []
  for number, text in enumerate(task.labels or ("0", "1")):
    example = dict(words=[text], group=str(number), answer="x", answers=["x"])
    example |= dict(label=text, tags=[text])
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
    right.append(answer if task.kind == "span" else gold(task, example))
  return [*evaluate(task, right, examples)]
