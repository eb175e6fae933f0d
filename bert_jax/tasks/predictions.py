"""Logits of rows to predictions of examples, as many and in the same order.

Answers to questions are made of logits of their starts and ends, by windows, as
in google-research/bert run_squad.py, write_predictions, with two differences:
an answer is a slice of the raw context, by characters, and a question without
a legal span has the answer "", where the original fails or answers "empty". A
beam's spans (ELECTRA's head) are read as google-research/electra finetune/qa/
qa_metrics.py does: scores are log probabilities, and no answer has a score of
its own, which stands beside the list.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.messages import UserError
from bert_jax.tasks.encoded_rows import Examples, Rows, Task, lengths
from bert_jax.tasks.windows import best_windows

Logits = Sequence[np.ndarray] | np.ndarray


class SpanRules(NamedTuple):
  """What is a legal answer, and when there is none.

  The values are those of google-research/bert run_squad.py.

  Attributes:
    n_best: starts and ends of a window that are tried, and answers in a list;
      what a beam tries is the model's.
    max_length: pieces in an answer at most.
    threshold: SQuAD 2.0 has no answer where `null_odds` exceed it (ELECTRA's
      configure_finetuning.py has -2.75, qa_na_threshold, for the test set).
    max_context: a start counts in the one window where it has most context;
      Hugging Face's run_qa.py counts it in all.
  """

  n_best: int = 20
  max_length: int = 30
  threshold: float = 0.0
  max_context: bool = True


DEFAULT = SpanRules()


def make_predictions(
  task: Task,
  rows: Rows,
  logits: Logits,
  examples: Examples,
  spans: SpanRules = DEFAULT,
) -> list[Any]:
  """Makes one prediction of each example.

  Args:
    task: the task.
    rows: N rows of the examples.
    logits: of each row, in order: classification [classes]; regression and
      choice one number; tagging [length, tags]; span [length, 2], or a beam's
      spans. Positions from the row's length on are padding. Of choices [E,
      choices] will do.
    examples: the raw fields of E examples.
    spans: how answers of kind span are chosen; a task with the metric squad2
      may have none.

  Returns:
    Classification and choice: the label's name. Several at once: a list of
    those whose chance is above one half. Regression: a number. Tagging: a list
    of tags, one a word; a word without a piece has O, or None where the task
    has no tag O. Span: see `answer_questions`.

  Raises:
    ValueError: logits of another number of rows or labels, or not finite.
  """
  if task.kind in ("tagging", "span"):
    _check_tokens(task, rows, logits)
    if task.kind == "tagging":
      return _tags(task, rows, logits, examples)
    null = "squad2" in task.metrics
    return answer_questions(rows, logits, examples, null, spans)
  scores = example_logits(task, rows, logits)
  if task.kind == "regression":
    return scores[:, 0].tolist()
  if task.kind == "multi_label":
    names = np.array(task.labels, object)
    return [names[row_scores > 0].tolist() for row_scores in scores]
  if "record" in task.metrics:
    return _one_of_each_group(task, scores, examples)
  return [task.labels[i] for i in scores.argmax(1)]


def example_logits(task: Task, rows: Rows, logits: Logits) -> np.ndarray:
  """Logits of E examples, float64 [E, classes], [E, choices] or [E, 1].

  Those of an example of several rows (windows of a long text) are the mean of
  its rows'. The arguments, and what is raised, are those of
  `make_predictions`.
  """
  named = task.kind in ("classification", "multi_label")
  width = len(task.labels) if named else 1
  scores = np.asarray(logits, np.float64)
  if scores.size != len(rows.example) * width:
    raise UserError(
      f"task {task.name}: logits of shape {list(scores.shape)} are not"
      f" {width} for each of {len(rows.example)} rows; has the model another"
      " number of labels?"
    )
  scores = scores.reshape(len(rows.example), width)
  check_finite(scores)
  if task.kind == "choice":
    return scores.reshape(-1, task.columns)
  return mean_of_windows(rows, scores)


def mean_of_windows(rows: Rows, logits: np.ndarray) -> np.ndarray:
  """The mean of the rows of each example, float64 [E, width].

  Args:
    rows: N rows; an example of a long text has several, its windows.
    logits: [N, width].
  """
  count = np.bincount(rows.example)
  sums = np.zeros((len(count), logits.shape[1]))
  np.add.at(sums, rows.example, logits)
  return sums / count[:, None]


def words_without_row(rows: Rows, examples: Examples) -> int:
  """The number of words of kind tagging that have no piece in any row."""
  pairs = np.stack([rows.example.repeat(lengths(rows)), rows.offsets[:, 0]], 1)
  words = np.unique(pairs[pairs[:, 1] >= 0], axis=0)
  return sum(len(e["words"]) for e in examples) - len(words)


def _check_tokens(task: Task, rows: Rows, logits: Logits) -> None:
  """Raises ValueError unless every token of every row has its logits."""
  if len(logits) != len(rows.example):
    raise UserError(
      f"task {task.name}: logits of {len(logits)} rows, not of"
      f" {len(rows.example)}."
    )
  if task.kind == "span" and all(map(is_beam, logits)):
    check_finite(*logits)
    return
  width = len(task.labels) if task.kind == "tagging" else 2
  for i, (row, length) in enumerate(zip(logits, lengths(rows), strict=True)):
    if len(row) < length or np.shape(row)[1:] != (width,):
      raise UserError(
        f"task {task.name}: logits of row {i} are {list(np.shape(row))}, not"
        f" [{length}, {width}]; has the model another number of labels?"
      )
    check_finite(row[:length])


def check_finite(*logits: np.ndarray) -> None:
  """Raises ValueError unless all are numbers."""
  if not all(np.isfinite(x).all() for x in logits):
    raise UserError("the model's logits are not finite; it is broken.")


def _tags(
  task: Task, rows: Rows, logits: Logits, examples: Examples
) -> list[list[str | None]]:
  """One tag a word: its first piece's, in the row with most context of it."""
  silent = "O" if "O" in task.labels else None
  tags = [[silent] * len(example["words"]) for example in examples]
  seen = [[-1.0] * len(example["words"]) for example in examples]
  for i, (example, length) in enumerate(
    zip(rows.example, lengths(rows), strict=True)
  ):
    words = rows.offsets[rows.starts[i] : rows.starts[i + 1], 0]
    places = np.flatnonzero(words >= 0)
    best = np.asarray(logits[i])[places].argmax(1)
    # As google-research/bert run_squad.py, _check_is_max_context.
    around = np.minimum(places, length - 1 - places) + 0.01 * length
    for word, tag, context in zip(words[places], best, around, strict=True):
      if context > seen[example][word]:
        tags[example][word] = task.labels[tag]
        seen[example][word] = context
  return tags


def _one_of_each_group(
  task: Task, scores: np.ndarray, examples: Examples
) -> list[str]:
  """The positive label for the likeliest example of each group alone."""
  margin = scores[:, 1] - scores[:, 0]
  best: dict[Any, int] = {}
  for i, example in enumerate(examples):
    group = example["group"]
    if group not in best or margin[i] > margin[best[group]]:
      best[group] = i
  chosen = set(best.values())
  return [task.labels[i in chosen] for i in range(len(examples))]


class _Spans(NamedTuple):
  """Candidates [K]: characters of the context, logits of start and end."""

  begin: np.ndarray
  end: np.ndarray
  start_logit: np.ndarray
  end_logit: np.ndarray


def answer_questions(
  rows: Rows,
  logits: Sequence[np.ndarray],
  examples: Examples,
  null: bool,
  rules: SpanRules,
) -> list[dict[str, Any]]:
  """Answers every question.

  Args:
    rows: N rows of a task of kind span.
    logits: of each row [at least its length, 2], start and end; or the spans
      of a beam [s, 4], see `question_head.JointAnswers`.
    examples: with `context`.
    null: True if a question may have no answer, as in SQuAD 2.0.
    rules: see `SpanRules`.

  Returns:
    For each example `text`, the answer; `best`, the answer that is best beside
    "" ("" if there is no legal one); `nbest`, the list with `text`,
    `probability`, `start_logit`, `end_logit`; if `null` also `null_odds`, the
    null span's score less that of `best` (0 if there is none), of a beam the
    logit of no answer.
  """
  if not examples:
    return []
  beam = is_beam(logits[0])
  bounds = np.searchsorted(rows.example, np.arange(len(examples) + 1))
  results = []
  for number, example in enumerate(examples):
    windows = range(bounds[number], bounds[number + 1])
    offsets = [
      rows.offsets[rows.starts[i] : rows.starts[i + 1]] for i in windows
    ]
    scores = [np.asarray(logits[i], np.float64) for i in windows]
    # Take the window that is least sure of "no answer".
    first = min((s[0, -2:] for s in scores), key=sum) if null else None
    pairs = [
      _beam_pairs(s, len(o)) if beam else _pairs(s[: len(o)], rules.n_best)
      for s, o in zip(scores, offsets, strict=True)
    ]
    spans = _candidates(offsets, pairs, rules)
    results.append(_answer(example["context"], spans, first, rules, beam))
  return results


def is_beam(logits: np.ndarray) -> bool:
  """Whether a row's logits are a beam's spans, not those of positions."""
  return np.shape(logits)[1:] == (4,)


def _pairs(scores: np.ndarray, n_best: int) -> tuple[np.ndarray, ...]:
  """Places and logits [K] of the best starts, each with the best ends."""
  order = np.argsort(-scores, 0, kind="stable")[:n_best]
  i, j = (x.ravel() for x in np.meshgrid(*order.T, indexing="ij"))
  return i, j, scores[i, 0], scores[j, 1]


def _beam_pairs(spans: np.ndarray, length: int) -> tuple[np.ndarray, ...]:
  """The same of a beam's spans; those in the padding are left out."""
  spans = spans[1:]
  spans = spans[(spans[:, :2] < length).all(1)]
  i, j = spans[:, :2].astype(np.int64).T
  return i, j, spans[:, 2], spans[:, 3]


def _candidates(
  offsets: list[np.ndarray],
  pairs: list[tuple[np.ndarray, ...]],
  rules: SpanRules,
) -> _Spans:
  """Legal spans of all windows of a question, in the original's order."""
  legal = [o[:, 0] >= 0 for o in offsets]
  starts = legal
  if rules.max_context and len(offsets) > 1:
    starts = [mask.copy() for mask in legal]
    contexts = [o[mask] for o, mask in zip(offsets, legal, strict=True)]
    spans = _context_spans(contexts)
    best = best_windows(spans[-1][1], spans)
    for k, (begin, end) in enumerate(spans):
      starts[k][legal[k]] = best[begin:end] == k
  spans_by_window = []
  for offset, (i, j, start, end), start_ok, end_ok in zip(
    offsets, pairs, starts, legal, strict=True
  ):
    keep = start_ok[i] & end_ok[j] & (j >= i) & (j - i < rules.max_length)
    begins, ends = offset[i[keep], 0], offset[j[keep], 1]
    spans_by_window.append(_Spans(begins, ends, start[keep], end[keep]))
  return _Spans(*map(np.concatenate, zip(*spans_by_window, strict=True)))


def _context_spans(contexts: list[np.ndarray]) -> list[tuple[int, int]]:
  """Pieces [begin, end) of the context in each window, by their characters."""
  spans = [(0, len(contexts[0]))]
  for before, here in zip(contexts, contexts[1:], strict=False):
    shift = len(before)
    for place in np.flatnonzero((before[1:] == here[0]).all(1)) + 1:
      if np.array_equal(before[place:], here[: len(before) - place]):
        shift = int(place)
        break
    begin = spans[-1][0] + shift
    spans.append((begin, begin + len(here)))
  return spans


def _answer(
  context: str,
  spans: _Spans,
  null: np.ndarray | None,
  rules: SpanRules,
  beam: bool,
) -> dict[str, Any]:
  """Makes the list of a question and chooses; `null` is [2], or None."""
  scores = spans.start_logit + spans.end_logit
  entries: dict[str, tuple[float, float]] = {}
  listed = null is not None and not beam
  if listed:
    scores = np.append(scores, null.sum())
  for k in np.argsort(-scores, kind="stable"):
    if len(entries) >= rules.n_best:
      break
    if k == len(spans.begin):
      entries[""] = float(null[0]), float(null[1])
      continue
    text = context[spans.begin[k] : spans.end[k]].strip()
    if text and text not in entries:
      entries[text] = float(spans.start_logit[k]), float(spans.end_logit[k])
  if listed:
    entries.setdefault("", (float(null[0]), float(null[1])))
  if not entries:
    entries[""] = 0.0, 0.0
  best = next((text for text in entries if text), "")
  result: dict[str, Any] = {"text": best, "best": best}
  if null is not None:
    less = sum(entries[best]) if best and not beam else 0.0
    odds = float(null.sum()) - less
    result["null_odds"] = odds
    result["text"] = "" if odds > rules.threshold else best
  totals = np.array([sum(pair) for pair in entries.values()])
  weights = np.exp(totals - totals.max())
  result["nbest"] = [
    {"text": text, "probability": p, "start_logit": start, "end_logit": end}
    for (text, (start, end)), p in zip(
      entries.items(), (weights / weights.sum()).tolist(), strict=True
    )
  ]
  return result
