"""Compares answers like the official scripts of SQuAD and ReCoRD.

The rules "1.1" and "2.0" come from evaluate-v1.1.py and evaluate-v2.0.py of
rajpurkar.github.io/SQuAD-explorer. ReCoRD's script has the rules "1.1".
"""

import collections
import re
import string
from collections.abc import Sequence

import numpy as np

RULES = ("2.0", "1.1")
# The ways to search for the threshold of "no answer", see `squad2`.
SEARCHES = ("reachable", "official")
_ARTICLES_PATTERN = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
  """Returns the text in lower case, without articles and ASCII punctuation.

  Words are separated by single spaces.
  """
  text = text.lower().translate(_PUNCTUATION)
  return " ".join(_ARTICLES_PATTERN.sub(" ", text).split())


def exact_match(prediction: str, gold: str) -> float:
  """Returns 1 if both texts are equal after `normalise`, else 0."""
  return float(normalise(prediction) == normalise(gold))


def f1(prediction: str, gold: str, rule: str = "2.0") -> float:
  """Returns the harmonic mean of precision and recall over a bag of words.

  Args:
    prediction: the predicted answer.
    gold: the true answer.
    rule: the rule if an answer has no words after `normalise`: "2.0" gives 1 if
      neither answer has words, else 0; "1.1" gives 0.
  """
  predicted_words, gold_words = (
    normalise(prediction).split(),
    normalise(gold).split(),
  )
  if rule == "2.0" and not (predicted_words and gold_words):
    return float(predicted_words == gold_words)
  common_words = collections.Counter(predicted_words) & collections.Counter(
    gold_words
  )
  num_common = common_words.total()
  return (
    2.0 * num_common / (len(predicted_words) + len(gold_words))
    if num_common
    else 0.0
  )


def best_scores(
  prediction: str, golds: Sequence[str], rule: str = "2.0"
) -> tuple[float, float]:
  """Returns the largest exact match and the largest F1 over the true answers.

  Args:
    prediction: the predicted answer, "" for no answer.
    golds: the true answers. By rule "2.0", an answer without words after
      `normalise` does not count. If no answer counts, "" is the true answer.
    rule: see `f1`.
  """
  if rule == "2.0":
    golds = [gold for gold in golds if normalise(gold)]
  golds = golds or [""]
  return (
    max(exact_match(prediction, gold) for gold in golds),
    max(f1(prediction, gold, rule) for gold in golds),
  )


def squad(
  predictions: Sequence[str], golds: Sequence[Sequence[str]]
) -> dict[str, float]:
  """Returns SQuAD 1.1's `exact_match` and `f1` of all questions, in percent.

  Args:
    predictions: the predicted answer to each question.
    golds: the true answers to each question.
  """
  em_f1_pairs = [
    best_scores(prediction, true_answers, "1.1")
    for prediction, true_answers in zip(predictions, golds, strict=True)
  ]
  mean_exact_match, mean_f1 = np.mean(em_f1_pairs, 0) * 100.0
  return {"exact_match": float(mean_exact_match), "f1": float(mean_f1)}


def squad2(
  predictions: Sequence[str],
  golds: Sequence[Sequence[str]],
  null_odds: Sequence[float] | None = None,
  threshold: float = 1.0,
  search: str = "reachable",
) -> dict[str, float]:
  """Returns SQuAD 2.0's scores under their official names, in percent.

  Args:
    predictions: the predicted answer to each question, "" for no answer.
    golds: the true answers to each question, [] if it has no answer.
    null_odds: for each question, the score of "no answer" minus the score of
      the answer, or a probability of "no answer"; None takes `predictions` as
      they are.
    threshold: if the odds of a question are larger than the threshold, its
      prediction counts as "no answer".
    search: how the best threshold is found. "reachable" finds a threshold that
      gives the best score. "official" is the search of evaluate-v2.0.py. The
      official search may separate questions with equal odds, which no threshold
      can do. Its threshold is 0.0 if it is best to answer no question.

  Returns:
    `exact`, `f1` and `total` of all questions. The prefix `HasAns_` marks the
    scores of the questions with an answer, and `NoAns_` those of the questions
    without an answer. If there are `null_odds`, also `best_exact` and
    `best_f1`, with their thresholds `best_exact_thresh` and `best_f1_thresh`.
  """
  raw_scores = np.array(
    [
      best_scores(prediction, true_answers)
      for prediction, true_answers in zip(predictions, golds, strict=True)
    ]
  )
  is_answerable = np.array([len(true_answers) > 0 for true_answers in golds])
  scores = raw_scores
  if null_odds is not None:
    is_without_answer = np.asarray(null_odds, np.float64) > threshold
    scores = np.where(
      is_without_answer[:, None], ~is_answerable[:, None], raw_scores
    )
  means = _means(scores, "")
  for prefix, mask in (("HasAns_", is_answerable), ("NoAns_", ~is_answerable)):
    if mask.any():
      means |= _means(scores[mask], prefix)
  if null_odds is not None:
    is_empty = np.array([not prediction for prediction in predictions])
    for column, name in enumerate(("best_exact", "best_f1")):
      score, best_threshold = _best_threshold(
        raw_scores[:, column], null_odds, is_answerable, is_empty, search
      )
      means |= {name: score, f"{name}_thresh": best_threshold}
  return means


def _means(scores: np.ndarray, prefix: str) -> dict[str, float]:
  """Returns the means of scores [N, 2], in percent, and N."""
  mean_exact_match, mean_f1 = scores.mean(0) * 100.0
  return {
    f"{prefix}exact": float(mean_exact_match),
    f"{prefix}f1": float(mean_f1),
    f"{prefix}total": float(len(scores)),
  }


def _best_threshold(
  scores: np.ndarray,
  null_odds: Sequence[float],
  is_answerable: np.ndarray,
  is_empty: np.ndarray,
  search: str,
) -> tuple[float, float]:
  """Finds the threshold of "no answer" that gives the best mean score.

  Args:
    scores: [N] the score of each predicted answer.
    null_odds: [N], see `squad2`.
    is_answerable: [N] True if the question has an answer.
    is_empty: [N] True if the predicted answer is "".
    search: one of `SEARCHES`.

  Returns:
    The best score in percent, and the threshold.
  """
  if search not in SEARCHES:
    raise ValueError(f"search {search!r} is not one of {', '.join(SEARCHES)}.")
  odds = np.asarray(null_odds, np.float64)
  # First predict "no answer" for all questions. Then predict answer after
  # answer, beginning with the lowest odds. Each answer adds its gain, which may
  # be negative, to the total score.
  unanswerable_gains = np.where(is_empty, 0.0, -1.0)
  if search == "reachable":
    # An answer without words, such as "the" or ".", is correct if the question
    # has no answer.
    unanswerable_gains = scores - 1.0
  gains = np.where(is_answerable, scores, unanswerable_gains)
  order = np.argsort(odds, kind="stable")
  unanswered_total = float((~is_answerable).sum())
  totals = unanswered_total + np.cumsum(gains[order])
  # The threshold with which no question gets an answer.
  unanswered_threshold = 0.0
  if search == "reachable":
    # No threshold separates questions with equal odds.
    is_last_of_equal_odds = np.append(np.diff(odds[order]) > 0, True)
    totals = np.where(is_last_of_equal_odds, totals, -np.inf)
    min_odds = odds[order[0]]
    unanswered_threshold = float(
      min(min_odds - 1.0, np.nextafter(min_odds, -np.inf))
    )
  best_index = int(np.argmax(totals))
  if totals[best_index] <= unanswered_total:
    return 100.0 * unanswered_total / len(scores), unanswered_threshold
  score = 100.0 * float(totals[best_index]) / len(scores)
  return score, float(odds[order[best_index]])
