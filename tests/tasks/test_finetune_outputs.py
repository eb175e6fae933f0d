"""Logits become one prediction for each example, whatever the batches are."""

import itertools
import json
import pathlib

import numpy as np
import pytest

from bert_jax.tasks import batches, metrics, predictions, server_files
from bert_jax.tasks.encoded_rows import Rows, Task
from bert_jax.tasks.predictions import SpanRules
from bert_jax.tasks.windows import window_bounds

BINARY = ("0", "1")


def task(kind, labels=(), *names, columns=1, name="mine"):
  return Task(name, kind, labels, columns, names)


def rows_of(sizes, example, labels, offsets=None):
  total = sum(sizes)
  return Rows(
    np.arange(total, dtype=np.int32),
    np.cumsum([0, *sizes], dtype=np.int64),
    np.array(sizes, np.int32),
    np.array(example, np.int64),
    np.array(labels),
    np.zeros((0, 2), np.int32) if offsets is None else np.array(offsets),
  )


def logits_in_batch_order(spec, rows, size, logits):
  """Collects each row's logits from its batch; returns them in row order."""
  split_batches = batches.Batches(spec, rows, 0, size, shuffle=False)
  batch_logits = [None] * len(rows.example_indices)
  for step in range(split_batches.steps_per_epoch):
    batch = split_batches.batch(step)
    for row in batch["row"]:
      for c in range(spec.num_choices if row >= 0 else 0):
        batch_logits[row + c] = logits[row + c]
  return batch_logits


@pytest.mark.parametrize("size", [1, 3, 4, 7, 10, 16])
def test_every_example_is_predicted_once(size):
  spec = task("classification", BINARY, "accuracy")
  rows = rows_of([2 + i for i in range(10)], range(10), [1] * 10)
  is_right = np.arange(10) < 8
  logits = np.stack([~is_right, is_right], 1).astype(np.float32)
  logits = logits_in_batch_order(spec, rows, size, logits)
  examples = [{"label": "1"}] * 10
  answers = predictions.make_predictions(spec, rows, logits, examples)
  assert answers == ["1"] * 8 + ["0"] * 2
  scores = metrics.evaluate(spec, answers, examples)
  assert scores == {"accuracy": 0.8, "examples": 10.0}


def test_one_example_in_a_larger_batch():
  spec = task("regression", (), "pearson")
  rows = rows_of([3], [0], np.array([3.8], np.float32))
  for logits in (np.array([[3.8]]), np.array([3.8])):
    (answers,) = predictions.make_predictions(
      spec, rows, logits, [{"label": None}]
    )
    assert answers == 3.8 and isinstance(answers, float)


def test_choices_are_of_their_example():
  spec = task("choice", tuple("ABCD"), "accuracy", columns=4)
  rows = rows_of([2] * 8, np.repeat([0, 1], 4), [3] * 4 + [0] * 4)
  flat_logits = np.arange(8.0)
  assert predictions.example_logits(spec, rows, flat_logits).tolist() == [
    [0, 1, 2, 3],
    [4, 5, 6, 7],
  ]
  examples = [{"label": "D"}, {"label": None}]
  for logits in (
    flat_logits,
    flat_logits.reshape(2, 4),
    flat_logits.reshape(8, 1),
  ):
    answers = predictions.make_predictions(spec, rows, logits, examples)
    assert answers == ["D", "D"]
  logits = np.random.RandomState(0).randn(8)
  for order in itertools.permutations(range(4)):
    permuted = np.concatenate([logits[:4][list(order)], logits[4:]])
    answers = predictions.make_predictions(spec, rows, permuted, examples)
    assert order["ABCD".index(answers[0])] == logits[:4].argmax()
    assert "ABCD".index(answers[1]) == logits[4:].argmax()
  for size in (1, 2, 3):
    collected_logits = logits_in_batch_order(spec, rows, size, logits)
    assert predictions.make_predictions(
      spec, rows, collected_logits, examples
    ) == [
      "ABCD"[logits[:4].argmax()],
      "ABCD"[logits[4:].argmax()],
    ]


def test_windows_of_a_text_are_averaged():
  spec = task("classification", BINARY)
  rows = rows_of([2, 2, 2], [0, 0, 1], [0] * 3)
  logits = [[3.0, 0.0], [0.0, 2.0], [0.0, 1.0]]
  scores = predictions.example_logits(spec, rows, np.array(logits))
  assert scores.tolist() == [[1.5, 1.0], [0.0, 1.0]]
  assert predictions.make_predictions(spec, rows, logits, [{}, {}]) == [
    "0",
    "1",
  ]


def test_each_query_has_one_entity_as_answer():
  spec = task("classification", ("false", "true"), "record")
  rows = rows_of([2] * 5, range(5), [0] * 5)
  examples = [{"group": g} for g in "qqrrr"]
  logits = [[5.0, 1], [1, -1], [0, 1], [0, 2], [3, 4]]
  answers = predictions.make_predictions(spec, rows, logits, examples)
  assert answers == ["false", "true", "false", "true", "false"]


def rows_of_sentence(words, spans, pieces):
  """Returns the rows of one sentence: windows over its pieces.

  Args:
    words: the number of words.
    spans: the (begin, end) of each window, in pieces.
    pieces: the number of pieces of each word.
  """
  words_of_pieces = np.repeat(np.arange(words), pieces)
  is_first = np.concatenate(
    [[True], words_of_pieces[1:] != words_of_pieces[:-1]]
  )
  word_numbers = np.where(is_first, words_of_pieces, -1)
  row_words = [[-1, *word_numbers[a:b], -1] for a, b in spans]
  offsets = np.repeat(np.concatenate(row_words), 2).reshape(-1, 2)
  sizes = [len(row) for row in row_words]
  return rows_of(sizes, [0] * len(spans), [-1] * sum(sizes), offsets)


def test_one_tag_a_word_from_the_window_with_most_context():
  labels = ("O", "B-X", "I-X")
  spec = task("tagging", labels, "tagging_f1")
  pieces = [1, 2, 0, 3, 1, 1]
  spans = [(0, 5), (3, 8)]
  rows = rows_of_sentence(6, spans, pieces)
  example = {"words": [*"abcdef"], "tags": None}
  # The first window predicts only B-X, the second only I-X.
  logits = [
    np.tile(np.eye(3)[1 + k], (7, 1)).astype(np.float32) for k in range(2)
  ]
  # Words begin at pieces 0, 1, 3, 6 and 7. Both windows have piece 3. Window 0
  # has pieces on both sides of piece 3; in window 1, piece 3 is the first.
  (tags,) = predictions.make_predictions(spec, rows, logits, [example])
  assert tags == ["B-X", "B-X", "O", "B-X", "I-X", "I-X"]
  assert predictions.num_words_without_row(rows, [example]) == 1
  gold = ["B-X", "O", "B-X", "O", "O", "O"]
  scores = metrics.evaluate(spec, [tags], [{**example, "tags": gold}])
  assert scores["recall"] == 0.5  # A word without a piece is counted.


def test_pieces_after_the_first_do_not_count():
  labels = ("B-ORG", "I-ORG")
  spec = task("tagging", labels, "tagging_f1")
  rows = rows_of_sentence(2, [(0, 4)], [2, 2])
  assert rows.offsets[:, 0].tolist() == [-1, 0, -1, 1, -1, -1]
  best_labels = np.array([1, 0, 0, 1, 0, 0])
  logits = [np.eye(2)[best_labels]]
  examples = [{"words": ["w1", "w2"], "tags": ["B-ORG", "I-ORG"]}]
  answers = predictions.make_predictions(spec, rows, logits, examples)
  assert answers == [["B-ORG", "I-ORG"]]
  assert metrics.evaluate(spec, answers, examples)["tagging_f1"] == 1
  tags_by_piece = np.array(["B-ORG", "B-ORG", "I-ORG", "I-ORG"]).tolist()
  piece_examples = [{"tags": ["B-ORG", "I-ORG", "I-ORG", "I-ORG"]}]
  assert (
    metrics.evaluate(spec, [tags_by_piece], piece_examples)["tagging_f1"] == 0
  )


def test_tags_do_not_depend_on_padding():
  spec = task("tagging", ("O", "B-X"))
  rows = rows_of_sentence(4, [(0, 4)], [1] * 4)
  logits = np.random.RandomState(0).randn(1, 6, 2)
  padded_logits = np.concatenate([logits, np.full((1, 5, 2), 9.0)], 1)
  examples = [{"words": [*"abcd"]}]
  answers = predictions.make_predictions(spec, rows, logits, examples)
  assert (
    predictions.make_predictions(spec, rows, padded_logits, examples) == answers
  )


def rows_of_question(context, capacity, stride, question_length=2):
  """Returns a question's rows and windows, and the offsets of the pieces.

  Each word of the context is a piece; a word of over 4 characters is two.
  """
  offsets, begin = [], 0
  for word in context.split(" "):
    end = begin + len(word)
    if word:
      middle = begin + max(1, len(word) // 2)
      halves = [(begin, middle), (middle, end)]
      offsets += halves if len(word) > 4 else [(begin, end)]
    begin = end + 1
  spans = window_bounds(len(offsets), capacity, stride)
  no_offset = [(-1, -1)]
  row_offsets = [
    no_offset * (question_length + 2) + offsets[a:b] + no_offset
    for a, b in spans
  ]
  sizes = [len(row) for row in row_offsets]
  labels = [(0, 0)] * len(spans)
  flat_offsets = list(itertools.chain(*row_offsets))
  rows = rows_of(sizes, [0] * len(spans), labels, flat_offsets)
  return rows, spans, offsets


def expected_answers(
  context, rows, spans, offsets, logits, null, rules, begin_of_context=4
):
  """Returns {text: score} of the best answers, the best first.

  It tries all spans of all windows, like `write_predictions` of
  google-research/bert run_squad.py.
  """
  spans_found, null_scores = [], []
  for k, (begin, end) in enumerate(spans):
    x = np.asarray(logits[k], np.float64)
    null_scores.append(x[0].sum())
    best_pieces = [
      sorted(range(len(x)), key=lambda i, c=c: -x[i, c])[: rules.n_best]
      for c in (0, 1)
    ]
    for i, j in itertools.product(*best_pieces):
      a, b = i - begin_of_context, j - begin_of_context
      if not (0 <= a <= b < end - begin and b - a < rules.max_length):
        continue
      contexts = [
        min(begin + a - p, q - 1 - begin - a) + 0.01 * (q - p)
        if p <= begin + a < q
        else -1
        for p, q in spans
      ]
      if rules.max_context and max(contexts) > contexts[k]:
        continue
      if rules.max_context and contexts.index(max(contexts)) != k:
        continue
      text = context[offsets[begin + a][0] : offsets[begin + b][1]]
      spans_found.append((x[i, 0] + x[j, 1], text))
  if null:
    spans_found.append((min(null_scores), ""))
  spans_found.sort(key=lambda pair: -pair[0])
  candidates = {}
  for score, text in spans_found:
    if len(candidates) < rules.n_best:
      candidates.setdefault(text, score)
  if null:
    candidates.setdefault("", min(null_scores))
  return candidates


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("max_context", [True, False])
def test_answers_are_those_of_the_original_rule(null, max_context):
  rng = np.random.RandomState(5)
  rules = SpanRules(n_best=6, max_length=4, max_context=max_context)
  spec = task("span", (), "squad2" if null else "squad")
  words = ["", "", "a", "of", "mat", "the", "cathedral", "river", "Danube"]
  for _ in range(40):
    context = " ".join(rng.choice(words, rng.randint(8, 40)))
    if not context.strip():
      continue
    rows, spans, offsets = rows_of_question(context, 9, rng.randint(3, 9))
    logits = [rng.randn(size, 2) for size in np.diff(rows.starts)]
    expected = expected_answers(
      context, rows, spans, offsets, logits, null, rules
    )
    example = {"id": "q", "context": context}
    (answers,) = predictions.make_predictions(
      spec, rows, logits, [example], rules
    )
    if not expected:
      expected = {"": 0.0}
    assert [e["text"] for e in answers["nbest"]] == list(expected)
    scores = [e["start_logit"] + e["end_logit"] for e in answers["nbest"]]
    assert scores == pytest.approx(list(expected.values()))
    probabilities = np.exp(scores) / np.exp(scores).sum()
    assert [e["probability"] for e in answers["nbest"]] == pytest.approx(
      probabilities
    )
    best_text = next((text for text in expected if text), "")
    assert answers["best"] == best_text and answers["text"] in context
    if null:
      gap = expected[""] - (expected[best_text] if best_text else 0)
      assert answers["null_odds"] == pytest.approx(gap)
      assert answers["text"] == ("" if gap > 0 else best_text)
      rules_without_answers = rules._replace(threshold=-1e9)
      (answers,) = predictions.make_predictions(
        spec, rows, logits, [example], rules_without_answers
      )
      assert answers["text"] == ""
    else:
      assert answers["text"] == best_text and "null_odds" not in answers


def rows_of_one_window(context="red cat", **peaks):
  rows, *_ = rows_of_question(context, 50, 20)
  logits = np.zeros((1, rows.starts[1], 2), np.float32)
  for column, logit in peaks.items():
    logits[0, int(column[1:])] = logit
  return rows, logits, [{"id": "q1", "context": context, "answers": None}]


@pytest.mark.parametrize("metric", ["squad", "squad2"])
@pytest.mark.parametrize(
  "rules", [SpanRules(n_best=1), SpanRules(max_length=0)]
)
def test_there_is_an_answer_where_no_span_is_legal(metric, rules, tmp_path):
  rows, logits, examples = rows_of_one_window(p0=9.0)
  spec = task("span", (), metric)
  (answers,) = predictions.make_predictions(spec, rows, logits, examples, rules)
  assert answers["text"] == answers["best"] == ""
  assert answers.get("null_odds") == (18.0 if metric == "squad2" else None)
  (candidate,) = answers["nbest"]
  assert (candidate["text"], candidate["probability"]) == ("", 1.0)
  for path in server_files.write(str(tmp_path), spec, [answers], examples):
    content = pathlib.Path(path).read_text(encoding="utf-8")
    assert list(json.loads(content)) == ["q1"]
  # Here a span is legal, and the threshold always accepts it.
  rules_with_answers = SpanRules(threshold=1e9)
  (answers,) = predictions.make_predictions(
    spec, rows, logits, examples, rules_with_answers
  )
  assert answers["text"] == "red"


def test_a_context_without_pieces_has_no_answer():
  rows, logits, examples = rows_of_one_window(context="  ")
  (answers,) = predictions.make_predictions(
    task("span", (), "squad"), rows, logits, examples
  )
  assert answers["text"] == "" and len(answers["nbest"]) == 1


@pytest.mark.parametrize("lead", ["  ", "\t", "\n \u00a0"])
def test_answers_are_slices_of_the_raw_context(lead):
  context = f"{lead}The Pure Land  school"
  begin = context.index("Pure")
  offsets = [(-1, -1)] * 3 + [
    (begin - 4, begin - 1),
    (
      begin - 1,
      begin + 4,
    ),  # A piece of byte-level BPE includes the space before it.
    (begin + 5, begin + 9),
    (begin + 11, begin + 17),
    (-1, -1),
  ]
  rows = rows_of([8], [0], [(4, 5)], offsets)
  logits = np.zeros((1, 8, 2))
  logits[0, 4, 0] = logits[0, 5, 1] = 5
  example = {"id": "q", "context": context}
  (answers,) = predictions.make_predictions(
    task("span", (), "squad"), rows, logits, [example]
  )
  assert answers["text"] == "Pure Land" == context[begin : begin + 9]
  texts = {e["text"] for e in answers["nbest"]}
  assert "Pure Land  school" in texts and all(t in context for t in texts)


def test_windows_are_found_by_characters():
  for count, capacity, stride in (
    (157, 114, 128),
    (400, 370, 128),
    (114, 114, 9),
  ):
    offsets = np.repeat(np.arange(count)[:, None], 2, 1)
    spans = window_bounds(count, capacity, stride)
    window_offsets = [offsets[a:b] for a, b in spans]
    assert predictions._piece_ranges(window_offsets) == spans
  # Several pieces of one character have the same offsets.
  offsets = np.repeat(np.arange(90) // 3, 2).reshape(-1, 2)
  spans = window_bounds(90, 20, 7)
  assert predictions._piece_ranges([offsets[a:b] for a, b in spans]) == spans


def test_answers_do_not_depend_on_padding():
  rng = np.random.RandomState(6)
  rows, *_ = rows_of_question("the river Danube of the cathedral mat", 5, 3)
  sizes = np.diff(rows.starts)
  logits = [rng.randn(size, 2).astype(np.float32) for size in sizes]
  padded_logits = np.full((len(sizes), 20, 2), 50.0, np.float32)
  for i, size in enumerate(sizes):
    padded_logits[i, :size] = logits[i]
  example = {"id": "q", "context": "the river Danube of the cathedral mat"}
  spec = task("span", (), "squad2")
  answers = predictions.make_predictions(spec, rows, logits, [example])
  assert (
    predictions.make_predictions(spec, rows, padded_logits, [example])
    == answers
  )


def test_logits_that_do_not_fit_are_refused():
  spec = task("classification", BINARY)
  rows = rows_of([2, 2], [0, 1], [0, 0])
  for logits in (np.zeros((1, 2)), np.zeros((2, 3))):
    with pytest.raises(ValueError, match="each of 2 rows needs 2"):
      predictions.make_predictions(spec, rows, logits, [{}, {}])
  with pytest.raises(ValueError, match="not finite"):
    predictions.make_predictions(spec, rows, np.full((2, 2), np.nan), [{}, {}])
  spec = task("tagging", ("O", "B-X", "I-X"))
  rows = rows_of_sentence(2, [(0, 2)], [1, 1])
  with pytest.raises(
    ValueError, match=r"row 0 have shape \[4, 2\], not \[4, 3\]"
  ):
    predictions.make_predictions(
      spec, rows, np.zeros((1, 4, 2)), [{"words": ["a"] * 2}]
    )
  with pytest.raises(
    ValueError, match="the logits are for 2 rows, but there are 1"
  ):
    predictions.make_predictions(
      spec, rows, np.zeros((2, 4, 3)), [{"words": ["a"] * 2}]
    )


def test_no_examples():
  no_rows = rows_of([], [], [])
  for kind in ("classification", "tagging", "span"):
    spec = task(kind, BINARY, "accuracy")
    no_logits = np.zeros((0, 2))
    assert predictions.make_predictions(spec, no_rows, no_logits, []) == []
    assert metrics.evaluate(spec, [], []) == {}
