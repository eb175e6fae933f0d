"""Tests that logits become one prediction for each example."""

import itertools
import json
import pathlib

import numpy as np
import pytest

from bert_jax.tasks import batches, metrics, predictions, server_files
from bert_jax.tasks.encoded_rows import Rows, Task
from bert_jax.tasks.predictions import SpanRules
from bert_jax.tasks.windows import window_bounds

BINARY_LABELS = ("0", "1")


def make_task(kind, labels=(), *metric_names, num_choices=1, name="mine"):
  return Task(name, kind, labels, num_choices=num_choices, metrics=metric_names)


def make_rows(sizes, example_indices, labels, offsets=None):
  num_tokens = sum(sizes)
  return Rows(
    ids=np.arange(num_tokens, dtype=np.int32),
    starts=np.cumsum([0, *sizes], dtype=np.int64),
    second_begins=np.array(sizes, np.int32),
    example_indices=np.array(example_indices, np.int64),
    labels=np.array(labels),
    offsets=np.zeros((0, 2), np.int32)
    if offsets is None
    else np.array(offsets),
  )


def collect_logits(task, rows, batch_size, logits):
  """Returns logits by row number, as a loop over batches would collect them."""
  split_batches = batches.Batches(
    task, rows, pad=0, batch_size=batch_size, shuffle=False
  )
  collected_logits = [None] * len(rows.example_indices)
  for step in range(split_batches.steps_per_epoch):
    batch = split_batches.batch(step)
    for row_number in batch["row"]:
      for choice in range(task.num_choices if row_number >= 0 else 0):
        collected_logits[row_number + choice] = logits[row_number + choice]
  return collected_logits


@pytest.mark.parametrize("batch_size", [1, 3, 4, 7, 10, 16])
def test_every_example_is_predicted_once(batch_size):
  task = make_task("classification", BINARY_LABELS, "accuracy")
  rows = make_rows([2 + i for i in range(10)], range(10), [1] * 10)
  is_right = np.arange(10) < 8
  logits = np.stack([~is_right, is_right], 1).astype(np.float32)
  logits = collect_logits(task, rows, batch_size, logits)
  examples = [{"label": "1"}] * 10
  answers = predictions.make_predictions(task, rows, logits, examples)
  assert answers == ["1"] * 8 + ["0"] * 2
  scores = metrics.evaluate(task, answers, examples)
  assert scores == {"accuracy": 0.8, "examples": 10.0}


def test_a_regression_predicts_one_number():
  task = make_task("regression", (), "pearson")
  rows = make_rows([3], [0], np.array([3.8], np.float32))
  for logits in (np.array([[3.8]]), np.array([3.8])):
    (number,) = predictions.make_predictions(
      task, rows, logits, [{"label": None}]
    )
    assert number == 3.8 and isinstance(number, float)


def test_choices_are_compared_within_their_example():
  task = make_task("choice", tuple("ABCD"), "accuracy", num_choices=4)
  rows = make_rows([2] * 8, np.repeat([0, 1], 4), [3] * 4 + [0] * 4)
  flat_logits = np.arange(8.0)
  assert predictions.example_logits(task, rows, flat_logits).tolist() == [
    [0, 1, 2, 3],
    [4, 5, 6, 7],
  ]
  examples = [{"label": "D"}, {"label": None}]
  for logits in (
    flat_logits,
    flat_logits.reshape(2, 4),
    flat_logits.reshape(8, 1),
  ):
    answers = predictions.make_predictions(task, rows, logits, examples)
    assert answers == ["D", "D"]
  logits = np.random.RandomState(0).randn(8)
  for order in itertools.permutations(range(4)):
    permuted_logits = np.concatenate([logits[:4][list(order)], logits[4:]])
    answers = predictions.make_predictions(
      task, rows, permuted_logits, examples
    )
    assert order["ABCD".index(answers[0])] == logits[:4].argmax()
    assert "ABCD".index(answers[1]) == logits[4:].argmax()
  for batch_size in (1, 2, 3):
    collected_logits = collect_logits(task, rows, batch_size, logits)
    assert predictions.make_predictions(
      task, rows, collected_logits, examples
    ) == [
      "ABCD"[logits[:4].argmax()],
      "ABCD"[logits[4:].argmax()],
    ]


def test_windows_of_a_text_are_averaged():
  task = make_task("classification", BINARY_LABELS)
  rows = make_rows([2, 2, 2], [0, 0, 1], [0] * 3)
  logits = [[3.0, 0.0], [0.0, 2.0], [0.0, 1.0]]
  scores = predictions.example_logits(task, rows, np.array(logits))
  assert scores.tolist() == [[1.5, 1.0], [0.0, 1.0]]
  assert predictions.make_predictions(task, rows, logits, [{}, {}]) == [
    "0",
    "1",
  ]


def test_each_query_has_one_true_entity():
  task = make_task("classification", ("false", "true"), "record")
  rows = make_rows([2] * 5, range(5), [0] * 5)
  examples = [{"group": group} for group in "qqrrr"]
  logits = [[5.0, 1], [1, -1], [0, 1], [0, 2], [3, 4]]
  answers = predictions.make_predictions(task, rows, logits, examples)
  assert answers == ["false", "true", "false", "true", "false"]


def make_sentence_rows(num_words, spans, pieces_per_word):
  """Returns the rows of one sentence; each row is a window of its pieces.

  Args:
    num_words: the number of words.
    spans: the (begin, end) of each window, in pieces.
    pieces_per_word: the number of pieces of each word.
  """
  word_of_piece = np.repeat(np.arange(num_words), pieces_per_word)
  is_first = np.concatenate([[True], word_of_piece[1:] != word_of_piece[:-1]])
  word_indices = np.where(is_first, word_of_piece, -1)
  words_by_row = [[-1, *word_indices[begin:end], -1] for begin, end in spans]
  offsets = np.repeat(np.concatenate(words_by_row), 2).reshape(-1, 2)
  sizes = [len(row) for row in words_by_row]
  return make_rows(sizes, [0] * len(spans), [-1] * sum(sizes), offsets)


def test_a_words_tag_comes_from_the_window_with_most_context():
  labels = ("O", "B-X", "I-X")
  task = make_task("tagging", labels, "tagging_f1")
  pieces_per_word = [1, 2, 0, 3, 1, 1]
  spans = [(0, 5), (3, 8)]
  rows = make_sentence_rows(
    num_words=6, spans=spans, pieces_per_word=pieces_per_word
  )
  example = {"words": [*"abcdef"], "tags": None}
  # The first window predicts only B-X, the second only I-X.
  logits = [
    np.tile(np.eye(3)[1 + window], (7, 1)).astype(np.float32)
    for window in range(2)
  ]
  # Words begin at pieces 0, 1, 3, 6 and 7. Both windows have piece 3. Window 0
  # has pieces on both sides of piece 3; in window 1, piece 3 is the first.
  (tags,) = predictions.make_predictions(task, rows, logits, [example])
  assert tags == ["B-X", "B-X", "O", "B-X", "I-X", "I-X"]
  assert predictions.num_words_without_row(rows, [example]) == 1
  gold = ["B-X", "O", "B-X", "O", "O", "O"]
  scores = metrics.evaluate(task, [tags], [{**example, "tags": gold}])
  assert scores["recall"] == 0.5  # The word without a piece is missed.


def test_pieces_after_the_first_do_not_count():
  labels = ("B-ORG", "I-ORG")
  task = make_task("tagging", labels, "tagging_f1")
  rows = make_sentence_rows(num_words=2, spans=[(0, 4)], pieces_per_word=[2, 2])
  assert rows.offsets[:, 0].tolist() == [-1, 0, -1, 1, -1, -1]
  best_labels = np.array([1, 0, 0, 1, 0, 0])
  logits = [np.eye(2)[best_labels]]
  examples = [{"words": ["w1", "w2"], "tags": ["B-ORG", "I-ORG"]}]
  answers = predictions.make_predictions(task, rows, logits, examples)
  assert answers == [["B-ORG", "I-ORG"]]
  assert metrics.evaluate(task, answers, examples)["tagging_f1"] == 1
  tags_by_piece = np.array(["B-ORG", "B-ORG", "I-ORG", "I-ORG"]).tolist()
  piece_examples = [{"tags": ["B-ORG", "I-ORG", "I-ORG", "I-ORG"]}]
  assert (
    metrics.evaluate(task, [tags_by_piece], piece_examples)["tagging_f1"] == 0
  )


def test_tags_do_not_depend_on_padding():
  task = make_task("tagging", ("O", "B-X"))
  rows = make_sentence_rows(
    num_words=4, spans=[(0, 4)], pieces_per_word=[1] * 4
  )
  logits = np.random.RandomState(0).randn(1, 6, 2)
  padded_logits = np.concatenate([logits, np.full((1, 5, 2), 9.0)], 1)
  examples = [{"words": [*"abcd"]}]
  answers = predictions.make_predictions(task, rows, logits, examples)
  assert (
    predictions.make_predictions(task, rows, padded_logits, examples) == answers
  )


def make_question_rows(context, capacity, stride, question_length=2):
  """Returns a question's rows, its windows, and the offsets of its pieces.

  A word of the context is one piece, or two if it has more than 4 characters.

  Args:
    context: the text of the context.
    capacity: the largest number of pieces in a window.
    stride: the number of pieces from the beginning of a window to the
      beginning of the next window.
    question_length: the number of pieces of the question.
  """
  offsets, begin = [], 0
  for word in context.split(" "):
    end = begin + len(word)
    if word:
      middle = begin + max(1, len(word) // 2)
      halves = [(begin, middle), (middle, end)]
      offsets += halves if len(word) > 4 else [(begin, end)]
    begin = end + 1
  spans = window_bounds(len(offsets), capacity=capacity, stride=stride)
  no_offset = [(-1, -1)]
  row_offsets = [
    no_offset * (question_length + 2) + offsets[begin:end] + no_offset
    for begin, end in spans
  ]
  sizes = [len(row) for row in row_offsets]
  labels = [(0, 0)] * len(spans)
  flat_offsets = list(itertools.chain(*row_offsets))
  rows = make_rows(sizes, [0] * len(spans), labels, flat_offsets)
  return rows, spans, offsets


def expected_answers(
  context,
  rows,
  spans,
  offsets,
  logits,
  may_lack_answer,
  rules,
  first_context_column=4,
):
  """Returns {text: score} of the best answers; the best answer is first.

  In each window, each of the `n_best` starts is tried with each of the `n_best`
  ends, as in `write_predictions` of google-research/bert run_squad.py.
  """
  scored_texts, null_scores = [], []
  for window, (begin, end) in enumerate(spans):
    window_logits = np.asarray(logits[window], np.float64)
    null_scores.append(window_logits[0].sum())
    best_columns = [
      sorted(
        range(len(window_logits)), key=lambda i, c=column: -window_logits[i, c]
      )[: rules.n_best]
      for column in (0, 1)
    ]
    for start_column, end_column in itertools.product(*best_columns):
      first_piece, last_piece = (
        start_column - first_context_column,
        end_column - first_context_column,
      )
      if not (
        0 <= first_piece <= last_piece < end - begin
        and last_piece - first_piece < rules.max_length
      ):
        continue
      # The context of the first piece in each window: the number of pieces on
      # its smaller side, and as a tie-break the window's length. It is -1 if
      # the window does not have the piece.
      context_sizes = [
        min(
          begin + first_piece - other_begin, other_end - 1 - begin - first_piece
        )
        + 0.01 * (other_end - other_begin)
        if other_begin <= begin + first_piece < other_end
        else -1
        for other_begin, other_end in spans
      ]
      if rules.max_context and max(context_sizes) > context_sizes[window]:
        continue
      if (
        rules.max_context and context_sizes.index(max(context_sizes)) != window
      ):
        continue
      text = context[
        offsets[begin + first_piece][0] : offsets[begin + last_piece][1]
      ]
      scored_texts.append(
        (window_logits[start_column, 0] + window_logits[end_column, 1], text)
      )
  if may_lack_answer:
    scored_texts.append((min(null_scores), ""))
  scored_texts.sort(key=lambda pair: -pair[0])
  candidates = {}
  for score, text in scored_texts:
    if len(candidates) < rules.n_best:
      candidates.setdefault(text, score)
  if may_lack_answer:
    candidates.setdefault("", min(null_scores))
  return candidates


@pytest.mark.parametrize("may_lack_answer", [False, True])
@pytest.mark.parametrize("max_context", [True, False])
def test_answers_are_those_of_run_squad(may_lack_answer, max_context):
  rng = np.random.RandomState(5)
  rules = SpanRules(n_best=6, max_length=4, max_context=max_context)
  task = make_task("span", (), "squad2" if may_lack_answer else "squad")
  words = ["", "", "a", "of", "mat", "the", "cathedral", "river", "Danube"]
  for _ in range(40):
    context = " ".join(rng.choice(words, rng.randint(8, 40)))
    if not context.strip():
      continue
    rows, spans, offsets = make_question_rows(
      context, capacity=9, stride=rng.randint(3, 9)
    )
    logits = [rng.randn(size, 2) for size in np.diff(rows.starts)]
    expected = expected_answers(
      context, rows, spans, offsets, logits, may_lack_answer, rules
    )
    example = {"id": "q", "context": context}
    (answers,) = predictions.make_predictions(
      task, rows, logits, [example], rules
    )
    if not expected:
      expected = {"": 0.0}
    assert [entry["text"] for entry in answers["nbest"]] == list(expected)
    scores = [
      entry["start_logit"] + entry["end_logit"] for entry in answers["nbest"]
    ]
    assert scores == pytest.approx(list(expected.values()))
    probabilities = np.exp(scores) / np.exp(scores).sum()
    assert [
      entry["probability"] for entry in answers["nbest"]
    ] == pytest.approx(probabilities)
    best_text = next((text for text in expected if text), "")
    assert answers["best"] == best_text and answers["text"] in context
    if may_lack_answer:
      null_odds = expected[""] - (expected[best_text] if best_text else 0)
      assert answers["null_odds"] == pytest.approx(null_odds)
      assert answers["text"] == ("" if null_odds > 0 else best_text)
      rules_without_answers = rules._replace(threshold=-1e9)
      (answers,) = predictions.make_predictions(
        task, rows, logits, [example], rules_without_answers
      )
      assert answers["text"] == ""
    else:
      assert answers["text"] == best_text and "null_odds" not in answers


def make_one_window(context="red cat", peaks=()):
  """Returns rows, logits and examples of one question with one window.

  Args:
    context: the text of the context.
    peaks: pairs (column, logit), one for each column whose logits are not 0.
  """
  rows, *_ = make_question_rows(context, capacity=50, stride=20)
  logits = np.zeros((1, rows.starts[1], 2), np.float32)
  for column, logit in peaks:
    logits[0, column] = logit
  return rows, logits, [{"id": "q1", "context": context, "answers": None}]


@pytest.mark.parametrize("metric", ["squad", "squad2"])
@pytest.mark.parametrize(
  "rules", [SpanRules(n_best=1), SpanRules(max_length=0)]
)
def test_without_a_legal_span_the_answer_is_empty(metric, rules, tmp_path):
  rows, logits, examples = make_one_window(peaks=[(0, 9.0)])
  task = make_task("span", (), metric)
  (answers,) = predictions.make_predictions(task, rows, logits, examples, rules)
  assert answers["text"] == answers["best"] == ""
  assert answers.get("null_odds") == (18.0 if metric == "squad2" else None)
  (candidate,) = answers["nbest"]
  assert (candidate["text"], candidate["probability"]) == ("", 1.0)
  for path in server_files.write(str(tmp_path), task, [answers], examples):
    content = pathlib.Path(path).read_text(encoding="utf-8")
    assert list(json.loads(content)) == ["q1"]
  # These rules allow spans, and prefer any span to no answer.
  permissive_rules = SpanRules(threshold=1e9)
  (answers,) = predictions.make_predictions(
    task, rows, logits, examples, permissive_rules
  )
  assert answers["text"] == "red"


def test_a_context_without_pieces_has_no_answer():
  rows, logits, examples = make_one_window(context="  ")
  (answers,) = predictions.make_predictions(
    make_task("span", (), "squad"), rows, logits, examples
  )
  assert answers["text"] == "" and len(answers["nbest"]) == 1


@pytest.mark.parametrize("leading_space", ["  ", "\t", "\n \u00a0"])
def test_answers_are_slices_of_the_raw_context(leading_space):
  context = f"{leading_space}The Pure Land  school"
  begin = context.index("Pure")
  offsets = [(-1, -1)] * 3 + [
    (begin - 4, begin - 1),
    # A piece of byte-level BPE includes the space before it.
    (begin - 1, begin + 4),
    (begin + 5, begin + 9),
    (begin + 11, begin + 17),
    (-1, -1),
  ]
  rows = make_rows([8], [0], [(4, 5)], offsets)
  logits = np.zeros((1, 8, 2))
  logits[0, 4, 0] = logits[0, 5, 1] = 5
  example = {"id": "q", "context": context}
  (answers,) = predictions.make_predictions(
    make_task("span", (), "squad"), rows, logits, [example]
  )
  assert answers["text"] == "Pure Land" == context[begin : begin + 9]
  texts = {entry["text"] for entry in answers["nbest"]}
  assert "Pure Land  school" in texts and all(text in context for text in texts)


def test_windows_are_found_by_offsets_of_characters():
  for num_pieces, capacity, stride in (
    (157, 114, 128),
    (400, 370, 128),
    (114, 114, 9),
  ):
    offsets = np.repeat(np.arange(num_pieces)[:, None], 2, 1)
    spans = window_bounds(num_pieces, capacity=capacity, stride=stride)
    window_offsets = [offsets[begin:end] for begin, end in spans]
    assert predictions._piece_ranges(window_offsets) == spans
  # Several pieces of one character have the same offsets.
  offsets = np.repeat(np.arange(90) // 3, 2).reshape(-1, 2)
  spans = window_bounds(90, capacity=20, stride=7)
  assert (
    predictions._piece_ranges([offsets[begin:end] for begin, end in spans])
    == spans
  )


def test_answers_do_not_depend_on_padding():
  rng = np.random.RandomState(6)
  rows, *_ = make_question_rows(
    "the river Danube of the cathedral mat", capacity=5, stride=3
  )
  sizes = np.diff(rows.starts)
  logits = [rng.randn(size, 2).astype(np.float32) for size in sizes]
  padded_logits = np.full((len(sizes), 20, 2), 50.0, np.float32)
  for i, size in enumerate(sizes):
    padded_logits[i, :size] = logits[i]
  example = {"id": "q", "context": "the river Danube of the cathedral mat"}
  task = make_task("span", (), "squad2")
  answers = predictions.make_predictions(task, rows, logits, [example])
  assert (
    predictions.make_predictions(task, rows, padded_logits, [example])
    == answers
  )


def test_logits_that_do_not_fit_are_refused():
  task = make_task("classification", BINARY_LABELS)
  rows = make_rows([2, 2], [0, 1], [0, 0])
  for logits in (np.zeros((1, 2)), np.zeros((2, 3))):
    with pytest.raises(ValueError, match="each of 2 rows needs 2"):
      predictions.make_predictions(task, rows, logits, [{}, {}])
  with pytest.raises(ValueError, match="not finite"):
    predictions.make_predictions(task, rows, np.full((2, 2), np.nan), [{}, {}])
  task = make_task("tagging", ("O", "B-X", "I-X"))
  rows = make_sentence_rows(num_words=2, spans=[(0, 2)], pieces_per_word=[1, 1])
  with pytest.raises(
    ValueError, match=r"row 0 have shape \[4, 2\], not \[4, 3\]"
  ):
    predictions.make_predictions(
      task, rows, np.zeros((1, 4, 2)), [{"words": ["a"] * 2}]
    )
  with pytest.raises(
    ValueError, match="the logits are for 2 rows, but there are 1"
  ):
    predictions.make_predictions(
      task, rows, np.zeros((2, 4, 3)), [{"words": ["a"] * 2}]
    )


def test_no_examples_give_no_predictions():
  no_rows = make_rows([], [], [])
  for kind in ("classification", "tagging", "span"):
    task = make_task(kind, BINARY_LABELS, "accuracy")
    no_logits = np.zeros((0, 2))
    assert predictions.make_predictions(task, no_rows, no_logits, []) == []
    assert metrics.evaluate(task, [], []) == {}
