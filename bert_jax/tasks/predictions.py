"""Turns the logits of rows into one prediction for each example, in order.

Answers to questions are found from the logits of starts and ends in all
windows, as in `write_predictions` of google-research/bert run_squad.py. This
module differs from run_squad.py in two points. An answer is a slice of the
characters of the raw context. If no span is legal, the answer is "", while
run_squad.py fails or answers "empty".

ELECTRA's head gives the spans of a beam search instead. The spans are read as
in google-research/electra finetune/qa/qa_metrics.py. A span's score is a log
probability. "No answer" has a separate score, and is not in the list of
answers.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.messages import UserError
from bert_jax.tasks.encoded_rows import Examples, Rows, Task, lengths
from bert_jax.tasks.windows import best_window_of_tokens

Logits = Sequence[np.ndarray] | np.ndarray


class SpanRules(NamedTuple):
  """Says which answers are legal, and when a question gets no answer.

  The defaults come from google-research/bert run_squad.py.

  Attributes:
    n_best: the number of starts and the number of ends that are tried in each
      window, and the largest number of answers in a list (one more if "" must
      be added). A model with a beam chooses the starts and ends itself.
    max_length: the largest number of pieces in an answer.
    threshold: in SQuAD 2.0, the answer is "" if `null_odds` is larger than the
      threshold. (For the test set, ELECTRA uses -2.75: `qa_na_threshold` in
      configure_finetuning.py.)
    max_context: True if a start is legal only in the window where it has the
      most context; Hugging Face's run_qa.py allows a start in every window.
  """

  n_best: int = 20
  max_length: int = 30
  threshold: float = 0.0
  max_context: bool = True


DEFAULT_RULES = SpanRules()


def make_predictions(
  task: Task,
  rows: Rows,
  logits: Logits,
  examples: Examples,
  span_rules: SpanRules = DEFAULT_RULES,
) -> list[Any]:
  """Makes one prediction for each example.

  Args:
    task: the task.
    rows: N rows of the examples.
    logits: the logits of each row, in order; the table below has their shapes.
      Columns after the row's length are padding. For kind choice, the logits
      may also be one array [E, choices].
    examples: the raw fields of E examples.
    span_rules: the rules for answers; only the kind span uses them.

  Returns:
    A prediction for each example:

    | kind | logits of a row | prediction |
    |---|---|---|
    | classification | [classes] | the name of the label |
    | multi_label | [labels] | the names with a probability above 1/2 |
    | regression | one number | a number |
    | choice | one number | the name of the label |
    | tagging | [length, tags] | the name of a tag for each word |
    | span | [length, 2], or the spans of a beam | see `answer_questions` |

    A word without a piece gets the tag O, or None if the task has no tag O. In
    ReCoRD, only the likeliest example of each `group` gets the positive label.
    A question of a span task may have no answer if the task has the metric
    squad2.

  Raises:
    ValueError: the logits are not finite, or do not fit the rows and labels.
  """
  if task.kind in ("tagging", "span"):
    _check_token_logits(task, rows, logits)
    if task.kind == "tagging":
      return _predict_tags(task, rows, logits, examples)
    may_lack_answer = "squad2" in task.metrics
    return answer_questions(
      rows, list(logits), examples, may_lack_answer, span_rules
    )
  scores = example_logits(task, rows, logits)
  if task.kind == "regression":
    return scores[:, 0].tolist()
  if task.kind == "multi_label":
    names = np.array(task.labels, object)
    return [names[row_scores > 0].tolist() for row_scores in scores]
  if "record" in task.metrics:
    return _likeliest_of_groups(task, scores, examples)
  return [task.labels[i] for i in scores.argmax(1)]


def example_logits(task: Task, rows: Rows, logits: Logits) -> np.ndarray:
  """Returns the logits of E examples.

  If an example has several rows (windows of a long text), its logits are the
  mean over these rows. For the arguments see `make_predictions`.

  Returns:
    float64 [E, classes], [E, choices] or [E, 1].

  Raises:
    ValueError: the logits are not finite, or do not fit the rows and labels.
  """
  has_label_logits = task.kind in ("classification", "multi_label")
  width = len(task.labels) if has_label_logits else 1
  scores = np.asarray(logits, np.float64)
  if scores.size != len(rows.example_indices) * width:
    raise UserError(
      f"task {task.name}: the logits have shape {list(scores.shape)}, but each"
      f" of {len(rows.example_indices)} rows needs {width}; does the model have"
      " another number of labels?"
    )
  scores = scores.reshape(len(rows.example_indices), width)
  check_finite(scores)
  if task.kind == "choice":
    return scores.reshape(-1, task.num_choices)
  return mean_of_windows(rows, scores)


def mean_of_windows(rows: Rows, logits: np.ndarray) -> np.ndarray:
  """Returns the mean over the rows of each example, float64 [E, width].

  Args:
    rows: N rows; the windows of a long text are several rows of one example.
    logits: [N, width].
  """
  row_counts = np.bincount(rows.example_indices)
  sums = np.zeros((len(row_counts), logits.shape[1]))
  np.add.at(sums, rows.example_indices, logits)
  return sums / row_counts[:, None]


def num_words_without_row(rows: Rows, examples: Examples) -> int:
  """Returns the number of words that have no piece in any row.

  Args:
    rows: rows of kind tagging.
    examples: the raw fields of the examples.
  """
  pairs = np.stack(
    [rows.example_indices.repeat(lengths(rows)), rows.offsets[:, 0]], 1
  )
  words_with_piece = np.unique(pairs[pairs[:, 1] >= 0], axis=0)
  return sum(len(example["words"]) for example in examples) - len(
    words_with_piece
  )


def _check_token_logits(task: Task, rows: Rows, logits: Logits) -> None:
  """Raises ValueError unless every token of every row has logits."""
  if len(logits) != len(rows.example_indices):
    raise UserError(
      f"task {task.name}: the logits are for {len(logits)} rows, but there are"
      f" {len(rows.example_indices)}; give the logits of every row."
    )
  if task.kind == "span" and all(map(is_beam, logits)):
    check_finite(*logits)
    return
  width = len(task.labels) if task.kind == "tagging" else 2
  for i, (row, length) in enumerate(zip(logits, lengths(rows), strict=True)):
    if len(row) < length or np.shape(row)[1:] != (width,):
      raise UserError(
        f"task {task.name}: the logits of row {i} have shape"
        f" {list(np.shape(row))}, not [{length}, {width}]; does the model have"
        " another number of labels?"
      )
    check_finite(row[:length])


def check_finite(*logits: np.ndarray) -> None:
  """Raises ValueError unless all logits are finite."""
  if not all(np.isfinite(row_logits).all() for row_logits in logits):
    raise UserError("the model's logits are not finite; the model is broken.")


def _predict_tags(
  task: Task, rows: Rows, logits: Logits, examples: Examples
) -> list[list[str | None]]:
  """Returns the tag of each word, which is the tag of its first piece.

  If several rows have the first piece of a word, the row with the most context
  around the piece decides.
  """
  outside_tag = "O" if "O" in task.labels else None
  tags = [[outside_tag] * len(example["words"]) for example in examples]
  most_context = [[-1.0] * len(example["words"]) for example in examples]
  for i, (example_index, length) in enumerate(
    zip(rows.example_indices, lengths(rows), strict=True)
  ):
    word_indices = rows.offsets[rows.starts[i] : rows.starts[i + 1], 0]
    columns = np.flatnonzero(word_indices >= 0)
    best_tags = np.asarray(logits[i])[columns].argmax(1)
    # The context is measured as in google-research/bert run_squad.py,
    # _check_is_max_context.
    contexts = np.minimum(columns, length - 1 - columns) + 0.01 * length
    for word_index, tag_id, context in zip(
      word_indices[columns], best_tags, contexts, strict=True
    ):
      if context > most_context[example_index][word_index]:
        tags[example_index][word_index] = task.labels[tag_id]
        most_context[example_index][word_index] = context
  return tags


def _likeliest_of_groups(
  task: Task, scores: np.ndarray, examples: Examples
) -> list[str]:
  """Returns label 1 for the likeliest example of each group, else label 0."""
  margin = scores[:, 1] - scores[:, 0]
  best_by_group: dict[Any, int] = {}
  for i, example in enumerate(examples):
    group = example["group"]
    if group not in best_by_group or margin[i] > margin[best_by_group[group]]:
      best_by_group[group] = i
  best_indices = set(best_by_group.values())
  return [task.labels[i in best_indices] for i in range(len(examples))]


class _Spans(NamedTuple):
  """Holds K possible answers to a question.

  Attributes:
    begins: [K] the index of the answer's first character in the context.
    ends: [K] the index of the character after the answer.
    start_logits: [K] the logit of the start.
    end_logits: [K] the logit of the end.
  """

  begins: np.ndarray
  ends: np.ndarray
  start_logits: np.ndarray
  end_logits: np.ndarray


class _Pairs(NamedTuple):
  """Holds K pairs of a start and an end in one window.

  Attributes:
    starts: [K] the column of the start.
    ends: [K] the column of the end.
    start_logits: [K] the logit of the start.
    end_logits: [K] the logit of the end.
  """

  starts: np.ndarray
  ends: np.ndarray
  start_logits: np.ndarray
  end_logits: np.ndarray


def answer_questions(
  rows: Rows,
  logits: Sequence[np.ndarray],
  examples: Examples,
  may_lack_answer: bool,
  rules: SpanRules,
) -> list[dict[str, Any]]:
  """Answers every question.

  Args:
    rows: N rows of a task of kind span.
    logits: for each row, the logits of starts and ends, [at least the row's
      length, 2]; or the spans of a beam [s, 4], see
      `question_head.JointAnswerHead`.
    examples: examples with `context`.
    may_lack_answer: True if a question may have no answer, as in SQuAD 2.0.
    rules: the rules for answers.

  Returns:
    A dict for each example:
    `text`: the answer.
    `best`: the best answer that is not ""; "" if no answer is legal.
    `starts`: text of an answer -> the index in the context where it begins.
    `nbest`: a list of answers, the best first, each with `text`, `probability`,
      `start_logit` and `end_logit`.
    `null_odds`: the score of "no answer" minus the score of `best`, only if
      `may_lack_answer` is True. The score of `best` is 0 if no answer is legal.
      For a beam, `null_odds` is the logit of "no answer".
  """
  if not examples:
    return []
  from_beam = is_beam(logits[0])
  row_bounds = np.searchsorted(
    rows.example_indices, np.arange(len(examples) + 1)
  )
  answers = []
  for example_index, example in enumerate(examples):
    row_indices = range(
      row_bounds[example_index], row_bounds[example_index + 1]
    )
    offsets = [
      rows.offsets[rows.starts[i] : rows.starts[i + 1]] for i in row_indices
    ]
    scores = [np.asarray(logits[i], np.float64) for i in row_indices]
    # In each window, the last two entries of `scores[0]` are the logits of "no
    # answer". Use the window in which "no answer" has the lowest score.
    null_logits = (
      min((window_scores[0, -2:] for window_scores in scores), key=sum)
      if may_lack_answer
      else None
    )
    pairs = [
      _beam_pairs(window_scores, len(window_offsets))
      if from_beam
      else _best_pairs(window_scores[: len(window_offsets)], rules.n_best)
      for window_scores, window_offsets in zip(scores, offsets, strict=True)
    ]
    spans = _legal_spans(offsets, pairs, rules)
    context = example["context"]
    answers.append(
      _choose_answer(context, spans, null_logits, rules, from_beam)
    )
  return answers


def is_beam(row_logits: np.ndarray) -> bool:
  """Returns True if the logits of a row are the spans of a beam."""
  return np.shape(row_logits)[1:] == (4,)


def _best_pairs(scores: np.ndarray, n_best: int) -> _Pairs:
  """Combines the best starts of a window with its best ends.

  Args:
    scores: [length, 2] the logits of starts and ends.
    n_best: the number of starts, and also the number of ends.
  """
  best_columns = np.argsort(-scores, 0, kind="stable")[:n_best]
  start_and_end_grids = np.meshgrid(*best_columns.T, indexing="ij")
  starts, ends = (columns.ravel() for columns in start_and_end_grids)
  return _Pairs(starts, ends, scores[starts, 0], scores[ends, 1])


def _beam_pairs(spans: np.ndarray, length: int) -> _Pairs:
  """Returns the pairs of a beam, without pairs in the padding."""
  spans = spans[1:]  # The first entry of a beam is the logit of "no answer".
  spans = spans[(spans[:, :2] < length).all(1)]
  starts, ends = spans[:, :2].astype(np.int64).T
  return _Pairs(starts, ends, spans[:, 2], spans[:, 3])


def _legal_spans(
  offsets: list[np.ndarray],
  pairs: list[_Pairs],
  rules: SpanRules,
) -> _Spans:
  """Finds the legal spans in all windows of a question.

  Args:
    offsets: for each window `Rows.offsets` of its tokens.
    pairs: for each window its pairs.
    rules: the rules for answers.

  Returns:
    The spans in the order of run_squad.py.
  """
  # For each window, True at the tokens of the context.
  in_context = [piece_offsets[:, 0] >= 0 for piece_offsets in offsets]
  start_masks = in_context
  if rules.max_context and len(offsets) > 1:
    start_masks = [mask.copy() for mask in in_context]
    context_offsets = [
      piece_offsets[mask]
      for piece_offsets, mask in zip(offsets, in_context, strict=True)
    ]
    piece_ranges = _piece_ranges(context_offsets)
    window_of_piece = best_window_of_tokens(piece_ranges[-1][1], piece_ranges)
    for window_index, (begin, end) in enumerate(piece_ranges):
      start_masks[window_index][in_context[window_index]] = (
        window_of_piece[begin:end] == window_index
      )
  spans_by_window = []
  for window_offsets, window_pairs, can_start, can_end in zip(
    offsets, pairs, start_masks, in_context, strict=True
  ):
    num_pieces = window_pairs.ends - window_pairs.starts + 1
    is_legal = can_start[window_pairs.starts] & can_end[window_pairs.ends]
    is_legal &= (num_pieces >= 1) & (num_pieces <= rules.max_length)
    spans_by_window.append(
      _Spans(
        window_offsets[window_pairs.starts[is_legal], 0],
        window_offsets[window_pairs.ends[is_legal], 1],
        window_pairs.start_logits[is_legal],
        window_pairs.end_logits[is_legal],
      )
    )
  return _Spans(*map(np.concatenate, zip(*spans_by_window, strict=True)))


def _piece_ranges(contexts: list[np.ndarray]) -> list[tuple[int, int]]:
  """Finds which pieces of the context each window has.

  Args:
    contexts: for each window the characters (begin, end) of its pieces.

  Returns:
    For each window the indices [begin, end) of its pieces in the whole context.
  """
  ranges = [(0, len(contexts[0]))]
  for previous, current in itertools.pairwise(contexts):
    shift = len(previous)
    for index in np.flatnonzero((previous[1:] == current[0]).all(1)) + 1:
      if np.array_equal(previous[index:], current[: len(previous) - index]):
        shift = int(index)
        break
    begin = ranges[-1][0] + shift
    ranges.append((begin, begin + len(current)))
  return ranges


def _choose_answer(
  context: str,
  spans: _Spans,
  null_logits: np.ndarray | None,
  rules: SpanRules,
  from_beam: bool,
) -> dict[str, Any]:
  """Lists the best answers to a question, and chooses one answer.

  Args:
    context: the raw context.
    spans: the legal spans.
    null_logits: [2] the logits of "no answer"; None means that every question
      has an answer.
    rules: the rules for answers.
    from_beam: True if the spans come from a beam.

  Returns:
    See `answer_questions`.
  """
  scores = spans.start_logits + spans.end_logits
  candidates: dict[str, tuple[float, float]] = {}
  starts: dict[str, int] = {}
  null_pair = None
  if null_logits is not None and not from_beam:
    null_pair = float(null_logits[0]), float(null_logits[1])
    scores = np.append(scores, null_logits.sum())
  for span_index in np.argsort(-scores, kind="stable"):
    if len(candidates) >= rules.n_best:
      break
    if null_pair and span_index == len(spans.begins):
      candidates[""] = null_pair
      continue
    text_with_spaces = context[
      spans.begins[span_index] : spans.ends[span_index]
    ]
    text = text_with_spaces.strip()
    if text and text not in candidates:
      starts[text] = int(spans.begins[span_index]) + text_with_spaces.index(
        text
      )
      logits = (
        float(spans.start_logits[span_index]),
        float(spans.end_logits[span_index]),
      )
      candidates[text] = logits
  if null_pair:
    candidates.setdefault("", null_pair)
  if not candidates:
    candidates[""] = 0.0, 0.0
  best = next((text for text in candidates if text), "")
  answer: dict[str, Any] = {"text": best, "best": best, "starts": starts}
  if null_logits is not None:
    best_score = sum(candidates[best]) if best and not from_beam else 0.0
    null_odds = float(null_logits.sum()) - best_score
    answer["null_odds"] = null_odds
    answer["text"] = "" if null_odds > rules.threshold else best
  candidate_scores = np.array([sum(pair) for pair in candidates.values()])
  weights = np.exp(candidate_scores - candidate_scores.max())
  answer["nbest"] = [
    {
      "text": text,
      "probability": probability,
      "start_logit": start,
      "end_logit": end,
    }
    for (text, (start, end)), probability in zip(
      candidates.items(), (weights / weights.sum()).tolist(), strict=True
    )
  ]
  return answer
