"""Logits to predictions: one an example, in order, whatever the batches."""

import itertools
import json

import numpy as np
import pytest

from bert_jax.tasks import batches, metrics, predictions, server_files
from bert_jax.tasks.encoded_rows import Rows, Task
from bert_jax.tasks.predictions import SpanRules
from bert_jax.tasks.windows import windows

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


def through_batches(mine, rows, size, logits):
  """What a model that knows the logits of rows gives back for its batches."""
  many = batches.Batches(mine, rows, 0, size, shuffle=False)
  found = [None] * len(rows.example)
  for step in range(many.steps_per_epoch):
    batch = many.batch(step)
    for row in batch["row"]:
      for c in range(mine.columns if row >= 0 else 0):
        found[row + c] = logits[row + c]
  return found


@pytest.mark.parametrize("size", [1, 3, 4, 7, 10, 16])
def test_every_example_is_predicted_once(size):
  mine = task("classification", BINARY, "accuracy")
  rows = rows_of([2 + i for i in range(10)], range(10), [1] * 10)
  right = np.arange(10) < 8
  logits = np.stack([~right, right], 1).astype(np.float32)
  logits = through_batches(mine, rows, size, logits)
  examples = [{"label": "1"}] * 10
  ours = predictions.make_predictions(mine, rows, logits, examples)
  assert ours == ["1"] * 8 + ["0"] * 2
  scores = metrics.evaluate(mine, ours, examples)
  assert scores == {"accuracy": 0.8, "examples": 10.0}


def test_one_example_in_a_larger_batch():
  mine = task("regression", (), "pearson")
  rows = rows_of([3], [0], np.array([3.8], np.float32))
  for logits in (np.array([[3.8]]), np.array([3.8])):
    (ours,) = predictions.make_predictions(
      mine, rows, logits, [{"label": None}]
    )
    assert ours == 3.8 and isinstance(ours, float)


def test_choices_are_of_their_example():
  mine = task("choice", tuple("ABCD"), "accuracy", columns=4)
  rows = rows_of([2] * 8, np.repeat([0, 1], 4), [3] * 4 + [0] * 4)
  flat = np.arange(8.0)
  assert predictions.example_logits(mine, rows, flat).tolist() == [
    [0, 1, 2, 3],
    [4, 5, 6, 7],
  ]
  examples = [{"label": "D"}, {"label": None}]
  for logits in (flat, flat.reshape(2, 4), flat.reshape(8, 1)):
    ours = predictions.make_predictions(mine, rows, logits, examples)
    assert ours == ["D", "D"]
  logits = np.random.RandomState(0).randn(8)
  for order in itertools.permutations(range(4)):
    mixed = np.concatenate([logits[:4][list(order)], logits[4:]])
    ours = predictions.make_predictions(mine, rows, mixed, examples)
    assert order["ABCD".index(ours[0])] == logits[:4].argmax()
    assert "ABCD".index(ours[1]) == logits[4:].argmax()
  for size in (1, 2, 3):
    again = through_batches(mine, rows, size, logits)
    assert predictions.make_predictions(mine, rows, again, examples) == [
      "ABCD"[logits[:4].argmax()],
      "ABCD"[logits[4:].argmax()],
    ]


def test_windows_of_a_text_are_averaged():
  mine = task("classification", BINARY)
  rows = rows_of([2, 2, 2], [0, 0, 1], [0] * 3)
  logits = [[3.0, 0.0], [0.0, 2.0], [0.0, 1.0]]
  scores = predictions.example_logits(mine, rows, np.array(logits))
  assert scores.tolist() == [[1.5, 1.0], [0.0, 1.0]]
  assert predictions.make_predictions(mine, rows, logits, [{}, {}]) == [
    "0",
    "1",
  ]


def test_of_a_query_one_entity_is_the_answer():
  mine = task("classification", ("false", "true"), "record")
  rows = rows_of([2] * 5, range(5), [0] * 5)
  examples = [{"group": g} for g in "qqrrr"]
  logits = [[5.0, 1], [1, -1], [0, 1], [0, 2], [3, 4]]
  ours = predictions.make_predictions(mine, rows, logits, examples)
  assert ours == ["false", "true", "false", "true", "false"]


def tagged(words, spans, pieces):
  """Rows of one sentence: windows over its pieces, between two specials."""
  first = np.repeat(np.arange(words), pieces)
  begins = np.concatenate([[True], first[1:] != first[:-1]])
  number = np.where(begins, first, -1)
  parts = [[-1, *number[a:b], -1] for a, b in spans]
  offsets = np.repeat(np.concatenate(parts), 2).reshape(-1, 2)
  sizes = [len(part) for part in parts]
  return rows_of(sizes, [0] * len(spans), [-1] * sum(sizes), offsets)


def test_one_tag_a_word_from_the_window_with_most_context():
  labels = ("O", "B-X", "I-X")
  mine = task("tagging", labels, "tagging_f1")
  pieces = [1, 2, 0, 3, 1, 1]
  spans = [(0, 5), (3, 8)]
  rows = tagged(6, spans, pieces)
  example = {"words": [*"abcdef"], "tags": None}
  # Each window says its own: B-X the first, I-X the second.
  logits = [
    np.tile(np.eye(3)[1 + k], (7, 1)).astype(np.float32) for k in range(2)
  ]
  # Words begin at pieces 0, 1, 3, 6, 7; of piece 3, window 0 has two before and
  # one after, window 1 none before.
  (tags,) = predictions.make_predictions(mine, rows, logits, [example])
  assert tags == ["B-X", "B-X", "O", "B-X", "I-X", "I-X"]
  assert predictions.words_without_row(rows, [example]) == 1
  gold = ["B-X", "O", "B-X", "O", "O", "O"]
  scores = metrics.evaluate(mine, [tags], [{**example, "tags": gold}])
  assert scores["recall"] == 0.5  # The word without a piece is counted.


def test_pieces_after_the_first_do_not_count():
  labels = ("B-ORG", "I-ORG")
  mine = task("tagging", labels, "tagging_f1")
  rows = tagged(2, [(0, 4)], [2, 2])
  assert rows.offsets[:, 0].tolist() == [-1, 0, -1, 1, -1, -1]
  best = np.array([1, 0, 0, 1, 0, 0])
  logits = [np.eye(2)[best]]
  examples = [{"words": ["w1", "w2"], "tags": ["B-ORG", "I-ORG"]}]
  ours = predictions.make_predictions(mine, rows, logits, examples)
  assert ours == [["B-ORG", "I-ORG"]]
  assert metrics.evaluate(mine, ours, examples)["tagging_f1"] == 1
  naive = np.array(["B-ORG", "B-ORG", "I-ORG", "I-ORG"]).tolist()
  pieces = [{"tags": ["B-ORG", "I-ORG", "I-ORG", "I-ORG"]}]
  assert metrics.evaluate(mine, [naive], pieces)["tagging_f1"] == 0


def test_tags_do_not_depend_on_padding():
  mine = task("tagging", ("O", "B-X"))
  rows = tagged(4, [(0, 4)], [1] * 4)
  logits = np.random.RandomState(0).randn(1, 6, 2)
  padded = np.concatenate([logits, np.full((1, 5, 2), 9.0)], 1)
  examples = [{"words": [*"abcd"]}]
  ours = predictions.make_predictions(mine, rows, logits, examples)
  assert predictions.make_predictions(mine, rows, padded, examples) == ours


def asked(context, room, stride, question=2):
  """Rows of a question: pieces are words of the context, and the half of long
  ones."""
  offsets, at = [], 0
  for word in context.split(" "):
    if word:
      cut = at + max(1, len(word) // 2)
      halves = [(at, cut), (cut, at + len(word))]
      offsets += halves if len(word) > 4 else [(at, at + len(word))]
    at += len(word) + 1
  spans = windows(len(offsets), room, stride)
  none = [(-1, -1)]
  parts = [none * (question + 2) + offsets[a:b] + none for a, b in spans]
  sizes = [len(part) for part in parts]
  labels = [(0, 0)] * len(spans)
  rows = rows_of(sizes, [0] * len(spans), labels, sum(parts, []))
  return rows, spans, offsets


def by_hand(context, rows, spans, offsets, logits, null, rules, before=4):
  """google-research/bert run_squad.py, write_predictions, restated: all spans
  of all windows that it would take, best first."""
  found, nulls = [], []
  for k, (begin, end) in enumerate(spans):
    x = np.asarray(logits[k], np.float64)
    nulls.append(x[0].sum())
    best = [
      sorted(range(len(x)), key=lambda i, c=c: -x[i, c])[: rules.n_best]
      for c in (0, 1)
    ]
    for i, j in itertools.product(*best):
      a, b = i - before, j - before
      if not (0 <= a <= b < end - begin and b - a < rules.max_length):
        continue
      context_of = [
        min(begin + a - p, q - 1 - begin - a) + 0.01 * (q - p)
        if p <= begin + a < q
        else -1
        for p, q in spans
      ]
      if rules.max_context and max(context_of) > context_of[k]:
        continue
      if rules.max_context and context_of.index(max(context_of)) != k:
        continue
      text = context[offsets[begin + a][0] : offsets[begin + b][1]]
      found.append((x[i, 0] + x[j, 1], text))
  if null:
    found.append((min(nulls), ""))
  found.sort(key=lambda pair: -pair[0])
  kept = {}
  for score, text in found:
    if len(kept) < rules.n_best:
      kept.setdefault(text, score)
  if null:
    kept.setdefault("", min(nulls))
  return kept


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("max_context", [True, False])
def test_answers_are_those_of_the_original_rule(null, max_context):
  rng = np.random.RandomState(5)
  rules = SpanRules(n_best=6, max_length=4, max_context=max_context)
  mine = task("span", (), "squad2" if null else "squad")
  words = np.array("  a of mat the cathedral river Danube".split(" "))
  for _ in range(40):
    context = " ".join(rng.choice(words, rng.randint(8, 40)))
    if not context.strip():
      continue
    rows, spans, offsets = asked(context, 9, rng.randint(3, 9))
    logits = [rng.randn(size, 2) for size in np.diff(rows.starts)]
    expected = by_hand(context, rows, spans, offsets, logits, null, rules)
    example = {"id": "q", "context": context}
    (ours,) = predictions.make_predictions(mine, rows, logits, [example], rules)
    if not expected:
      expected = {"": 0.0}
    assert [e["text"] for e in ours["nbest"]] == list(expected)
    scores = [e["start_logit"] + e["end_logit"] for e in ours["nbest"]]
    assert scores == pytest.approx(list(expected.values()))
    odds = np.exp(scores) / np.exp(scores).sum()
    assert [e["probability"] for e in ours["nbest"]] == pytest.approx(odds)
    best = next((text for text in expected if text), "")
    assert ours["best"] == best and ours["text"] in context
    if null:
      gap = expected[""] - (expected[best] if best else 0)
      assert ours["null_odds"] == pytest.approx(gap)
      assert ours["text"] == ("" if gap > 0 else best)
      sure = rules._replace(threshold=-1e9)
      (ours,) = predictions.make_predictions(
        mine, rows, logits, [example], sure
      )
      assert ours["text"] == ""
    else:
      assert ours["text"] == best and "null_odds" not in ours


def one_window(context="red cat", **peaks):
  rows, *_ = asked(context, 50, 20)
  logits = np.zeros((1, rows.starts[1], 2), np.float32)
  for place, value in peaks.items():
    logits[0, int(place[1:])] = value
  return rows, logits, [{"id": "q1", "context": context, "answers": None}]


@pytest.mark.parametrize("metric", ["squad", "squad2"])
@pytest.mark.parametrize(
  "rules", [SpanRules(n_best=1), SpanRules(max_length=0)]
)
def test_there_is_an_answer_where_no_span_is_legal(metric, rules, tmp_path):
  rows, logits, examples = one_window(p0=9.0)
  mine = task("span", (), metric)
  (ours,) = predictions.make_predictions(mine, rows, logits, examples, rules)
  assert ours["text"] == ours["best"] == ""
  assert ours.get("null_odds") == (18.0 if metric == "squad2" else None)
  (entry,) = ours["nbest"]
  assert (entry["text"], entry["probability"]) == ("", 1.0)
  for path in server_files.write(str(tmp_path), mine, [ours], examples):
    with open(path, encoding="utf-8") as f:
      assert list(json.load(f)) == ["q1"]
  # A legal span, and a threshold that always takes it.
  sure = SpanRules(threshold=1e9)
  (ours,) = predictions.make_predictions(mine, rows, logits, examples, sure)
  assert ours["text"] == "red"


def test_a_context_without_pieces_has_no_answer():
  rows, logits, examples = one_window(context="  ")
  (ours,) = predictions.make_predictions(
    task("span", (), "squad"), rows, logits, examples
  )
  assert ours["text"] == "" and len(ours["nbest"]) == 1


@pytest.mark.parametrize("lead", ["  ", "\t", "\n \u00a0"])
def test_answers_are_slices_of_the_raw_context(lead):
  context = f"{lead}The Pure Land  school"
  begin = context.index("Pure")
  offsets = [(-1, -1)] * 3 + [
    (begin - 4, begin - 1),
    (begin - 1, begin + 4),  # With the space before, as of byte-level BPE.
    (begin + 5, begin + 9),
    (begin + 11, begin + 17),
    (-1, -1),
  ]
  rows = rows_of([8], [0], [(4, 5)], offsets)
  logits = np.zeros((1, 8, 2))
  logits[0, 4, 0] = logits[0, 5, 1] = 5
  example = {"id": "q", "context": context}
  (ours,) = predictions.make_predictions(
    task("span", (), "squad"), rows, logits, [example]
  )
  assert ours["text"] == "Pure Land" == context[begin : begin + 9]
  texts = {e["text"] for e in ours["nbest"]}
  assert "Pure Land  school" in texts and all(t in context for t in texts)


def test_windows_are_found_by_characters():
  for count, room, stride in ((157, 114, 128), (400, 370, 128), (114, 114, 9)):
    context = np.repeat(np.arange(count)[:, None], 2, 1)
    spans = windows(count, room, stride)
    parts = [context[a:b] for a, b in spans]
    assert predictions._context_spans(parts) == spans
  # Pieces of one character have the same place.
  context = np.repeat(np.arange(90) // 3, 2).reshape(-1, 2)
  spans = windows(90, 20, 7)
  assert predictions._context_spans([context[a:b] for a, b in spans]) == spans


def test_answers_do_not_depend_on_padding():
  rng = np.random.RandomState(6)
  rows, *_ = asked("the river Danube of the cathedral mat", 5, 3)
  sizes = np.diff(rows.starts)
  logits = [rng.randn(size, 2).astype(np.float32) for size in sizes]
  padded = np.full((len(sizes), 20, 2), 50.0, np.float32)
  for i, size in enumerate(sizes):
    padded[i, :size] = logits[i]
  example = {"id": "q", "context": "the river Danube of the cathedral mat"}
  mine = task("span", (), "squad2")
  ours = predictions.make_predictions(mine, rows, logits, [example])
  assert predictions.make_predictions(mine, rows, padded, [example]) == ours


def test_logits_that_do_not_fit_are_refused():
  mine = task("classification", BINARY)
  rows = rows_of([2, 2], [0, 1], [0, 0])
  for logits in (np.zeros((1, 2)), np.zeros((2, 3))):
    with pytest.raises(ValueError, match="not 2 for each of 2 rows"):
      predictions.make_predictions(mine, rows, logits, [{}, {}])
  with pytest.raises(ValueError, match="not finite"):
    predictions.make_predictions(mine, rows, np.full((2, 2), np.nan), [{}, {}])
  mine = task("tagging", ("O", "B-X", "I-X"))
  rows = tagged(2, [(0, 2)], [1, 1])
  with pytest.raises(ValueError, match=r"row 0 are \[4, 2\], not \[4, 3\]"):
    predictions.make_predictions(
      mine, rows, np.zeros((1, 4, 2)), [{"words": ["a"] * 2}]
    )
  with pytest.raises(ValueError, match="logits of 2 rows, not of 1"):
    predictions.make_predictions(
      mine, rows, np.zeros((2, 4, 3)), [{"words": ["a"] * 2}]
    )


def test_no_examples():
  none = rows_of([], [], [])
  for kind in ("classification", "tagging", "span"):
    mine = task(kind, BINARY, "accuracy")
    empty = np.zeros((0, 2))
    assert predictions.make_predictions(mine, none, empty, []) == []
    assert metrics.evaluate(mine, [], []) == {}
