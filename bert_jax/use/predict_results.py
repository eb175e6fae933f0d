"""What a prediction is as JSON, by kind of model.

| kind | fields |
|---|---|
| classification | label, probability, probabilities {label: number} |
| multi_label | labels (those above one half), probabilities {label: number} |
| regression | score; of several outputs scores {name: number} |
| choice | choice (its number), probability, probabilities [number] |
| tagging | words, tags, probabilities, one each a word; null for a word \
without a piece, of a model without a tag O |
| span | answer, probability, nbest; null_odds where there may be no answer |
| fill | masks: for each the candidates, {token, probability} |

Of ELECTRA's head for questions the probabilities of `nbest` are given that
there is an answer; `probability` is not: it is that of the answer, or of none.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.tasks import predictions_outputs as outputs
from bert_jax.tasks.encoded_rows import Examples, Rows

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
    predictor: a `predicting.Predictor`.
    rows: of `predicting.encode`.
    logits: of each row.
    examples: their raw fields.

  Raises:
    ValueError: logits that are not finite.
  """
  kind, task = predictor.kind, predictor.task
  if kind == "fill":
    outputs.check_finite(*logits)
    return _masks(predictor, rows, logits, examples)
  if kind == "span":
    found = outputs.predictions(task, rows, logits, examples)
    return [_answer(one) for one in found]
  if kind == "tagging":
    tags = outputs.predictions(task, rows, logits, examples)
    chances = tag_chances(rows, logits, examples, tags, task.labels)
    return [
      {"words": e["words"], "tags": t, "probabilities": p}
      for e, t, p in zip(examples, tags, chances, strict=True)
    ]
  means = _means(rows, np.asarray(logits, np.float64))
  outputs.check_finite(means)
  if kind == "regression":
    return [_scores(task.labels, x) for x in means]
  if kind == "choice":
    counts = [len(e["texts"]) for e in examples]
    parts = np.split(means[:, 0], np.cumsum(counts)[:-1])
    return [_chosen(softmax(part)) for part in parts]
  if kind == "multi_label":
    return [_labels(task.labels, 1 / (1 + np.exp(-x))) for x in means]
  return [_label(task.labels, x) for x in softmax(means)]


def _means(rows: Rows, logits: np.ndarray) -> np.ndarray:
  """The mean logits of each item's windows."""
  count = np.bincount(rows.example)
  sums = np.zeros((len(count), logits.shape[1]))
  np.add.at(sums, rows.example, logits)
  return sums / count[:, None]


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


def _answer(found: dict[str, Any]) -> Result:
  odds = {k: found[k] for k in ("null_odds",) if k in found}
  nbest = [
    {"text": x["text"], "probability": x["probability"]} for x in found["nbest"]
  ]
  chances = {x["text"]: x["probability"] for x in nbest}
  text = found["text"]
  chance = chances.get(text, 0.0)
  if odds and "" not in chances:
    # A beam's list is of answers, given that there is one; that there is none
    # has a chance of its own, of which `null_odds` is the logit.
    none, some = softmax(np.array([found["null_odds"], 0.0])).tolist()
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
  predictor: Any, rows: Rows, found: Sequence[np.ndarray], examples: Examples
) -> list[Result]:
  results: list[Result] = [{"masks": []} for _ in examples]
  pieces = predictor.vocabulary.pieces
  for example, candidates in zip(rows.example, found, strict=True):
    named = [
      {"token": pieces[int(i)], "probability": float(np.exp(value))}
      for value, i in candidates
    ]
    results[example]["masks"].append(named)
  return results
