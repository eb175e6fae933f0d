"""Answers compared as the official scripts of SQuAD and ReCoRD compare them.

Rules: evaluate-v1.1.py and evaluate-v2.0.py of rajpurkar.github.io/SQuAD-
explorer; ReCoRD's script has those of v1.1.
"""

import collections
import re
import string
from collections.abc import Sequence

import numpy as np

RULES = ("2.0", "1.1")
# How the threshold of "no answer" is searched, see `squad2`.
SEARCHES = ("reachable", "official")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
  """Lower case, no ASCII punctuation, no articles, single spaces."""
  text = text.lower().translate(_PUNCTUATION)
  return " ".join(_ARTICLES.sub(" ", text).split())


def exact(prediction: str, gold: str) -> float:
  """1 if both are the same after `normalise`, else 0."""
  return float(normalise(prediction) == normalise(gold))


def f1(prediction: str, gold: str, rule: str = "2.0") -> float:
  """Harmonic mean of precision and recall over words as a bag.

  Args:
    prediction: the answer given.
    gold: the right answer.
    rule: where a side has no word after `normalise`, "2.0" asks whether both
      have none; "1.1" gives 0.
  """
  ours, right = normalise(prediction).split(), normalise(gold).split()
  if rule == "2.0" and not (ours and right):
    return float(ours == right)
  same = sum((collections.Counter(ours) & collections.Counter(right)).values())
  return 2.0 * same / (len(ours) + len(right)) if same else 0.0


def best(
  prediction: str, golds: Sequence[str], rule: str = "2.0"
) -> tuple[float, float]:
  """Returns the largest (exact, F1) over the right answers.

  Args:
    prediction: the answer given, "" for none.
    golds: right answers; by rule "2.0" those with no word left do not count,
      and none at all means that there is no answer.
    rule: see `f1`.
  """
  if rule == "2.0":
    golds = [g for g in golds if normalise(g)]
  golds = golds or [""]
  return (
    max(exact(prediction, gold) for gold in golds),
    max(f1(prediction, gold, rule) for gold in golds),
  )


def squad(
  texts: Sequence[str], golds: Sequence[Sequence[str]]
) -> dict[str, float]:
  """SQuAD 1.1's `exact_match` and `f1`, in percent, of all questions."""
  pairs = [best(t, g, "1.1") for t, g in zip(texts, golds, strict=True)]
  em, f = np.mean(pairs, 0) * 100.0
  return {"exact_match": float(em), "f1": float(f)}


def squad2(
  texts: Sequence[str],
  golds: Sequence[Sequence[str]],
  null_odds: Sequence[float] | None = None,
  threshold: float = 1.0,
  search: str = "reachable",
) -> dict[str, float]:
  """SQuAD 2.0's numbers under their official names, in percent.

  Args:
    texts: the answer to each question, "" for none.
    golds: right answers of each question, none where it has no answer.
    null_odds: score of "no answer" less that of the answer, or a probability.
    threshold: a question with larger odds counts as "no answer".
    search: "reachable" finds a threshold that gives the best score. "official"
      is evaluate-v2.0.py's: it may stop between questions of equal odds, where
      no threshold can, and says 0.0 where no answer at all is best.

  Returns:
    `exact`, `f1`, `total`; the same of questions that have an answer and of
    those that have none, `HasAns_` and `NoAns_`; with odds `best_exact`,
    `best_f1` and the thresholds that give them, `best_exact_thresh` and
    `best_f1_thresh`.
  """
  raw = np.array([best(t, g) for t, g in zip(texts, golds, strict=True)])
  answered = np.array([len(g) > 0 for g in golds])
  scores = raw
  if null_odds is not None:
    null = np.asarray(null_odds, np.float64) > threshold
    scores = np.where(null[:, None], ~answered[:, None], raw)
  result = _means(scores, "")
  for name, chosen in (("HasAns_", answered), ("NoAns_", ~answered)):
    if chosen.any():
      result |= _means(scores[chosen], name)
  if null_odds is not None:
    empty = np.array([not t for t in texts])
    for column, name in enumerate(("best_exact", "best_f1")):
      value, cut = _best_threshold(
        raw[:, column], null_odds, answered, empty, search
      )
      result |= {name: value, f"{name}_thresh": cut}
  return result


def _means(scores: np.ndarray, prefix: str) -> dict[str, float]:
  em, f = scores.mean(0) * 100.0
  return {
    f"{prefix}exact": float(em),
    f"{prefix}f1": float(f),
    f"{prefix}total": float(len(scores)),
  }


def _best_threshold(
  scores: np.ndarray,
  null_odds: Sequence[float],
  answered: np.ndarray,
  empty: np.ndarray,
  search: str,
) -> tuple[float, float]:
  """Returns (best score in percent, the odds above which to say nothing)."""
  if search not in SEARCHES:
    raise ValueError(f"search {search!r}: not one of {', '.join(SEARCHES)}.")
  odds = np.asarray(null_odds, np.float64)
  # All questions begin as "no answer"; each is then answered, surest first.
  wrong = np.where(empty, 0.0, -1.0)
  if search == "reachable":
    # An answer without a word, "the" or ".", is right where there is none.
    wrong = scores - 1.0
  change = np.where(answered, scores, wrong)
  order = np.argsort(odds, kind="stable")
  start = float((~answered).sum())
  current = start + np.cumsum(change[order])
  none = 0.0  # The threshold for no answer at all.
  if search == "reachable":
    # Equal odds are on one side of any threshold.
    last = np.append(np.diff(odds[order]) > 0, True)
    current = np.where(last, current, -np.inf)
    least = odds[order[0]]
    none = float(min(least - 1.0, np.nextafter(least, -np.inf)))
  place = int(np.argmax(current))
  if current[place] <= start:
    return 100.0 * start / len(scores), none
  return 100.0 * float(current[place]) / len(scores), float(odds[order[place]])
