"""Metrics agree with the official libraries and with simple programs here."""

import collections
import json
import math

import numpy as np
import pytest

from bert_jax.tasks import metrics, squad_metrics
from bert_jax.tasks.encoded_rows import Task

sklearn = pytest.importorskip("sklearn.metrics")
stats = pytest.importorskip("scipy.stats")
pytest.importorskip("seqeval.metrics")

BINARY = ("0", "1")


def task(kind, labels, *names):
  return Task("mine", kind, labels, 1, names)


def with_labels(values):
  return [{"label": label} for label in values]


def class_scores(labels, names, golds, predicted):
  kind = "classification" if labels else "regression"
  return metrics.evaluate(
    task(kind, labels, *names), predicted, with_labels(golds)
  )


def test_scores_of_a_whole_set():
  golds, predicted = [*"1" * 10], [*"1" * 8, "0", "0"]
  scores = class_scores(BINARY, ["accuracy"], golds, predicted)
  assert scores == {"accuracy": 0.8, "examples": 10.0}

  golds, predicted = [*"11101000"], [*"11001101"]
  scores = class_scores(BINARY, ["matthews", "f1"], golds, predicted)
  assert scores["matthews"] == pytest.approx(0.258199, abs=1e-6)
  assert scores["f1"] == pytest.approx(0.666667, abs=1e-6)
  order = np.random.RandomState(0).permutation(8)
  shuffled_labels = [[row[i] for i in order] for row in (golds, predicted)]
  assert class_scores(
    BINARY, ["matthews", "f1"], *shuffled_labels
  ) == pytest.approx(scores)

  scores = class_scores((), ["pearson"], [0, 1, 2, 3, 4, 5], [1, 2, 3, 0, 1, 2])
  assert scores["pearson"] == pytest.approx(-0.050965, abs=1e-6)


def test_classes_agree_with_scikit_learn():
  rng = np.random.RandomState(1)
  names = ("contradiction", "entailment", "neutral")
  golds, predicted = rng.randint(3, size=(2, 400))
  scores = class_scores(
    names,
    ["accuracy_f1_macro", "matthews"],
    [names[i] for i in golds],
    [names[i] for i in predicted],
  )
  macro = sklearn.f1_score(golds, predicted, average="macro")
  assert scores["accuracy"] == pytest.approx(np.mean(golds == predicted))
  assert scores["f1_macro"] == pytest.approx(macro)
  mean = (np.mean(golds == predicted) + macro) / 2
  assert scores["accuracy_f1_macro"] == pytest.approx(mean)
  matthews = sklearn.matthews_corrcoef(golds, predicted)
  assert scores["matthews"] == pytest.approx(matthews)
  assert next(iter(scores)) == "accuracy_f1_macro"

  golds, predicted = rng.rand(2, 300) < 0.3
  scores = class_scores(
    ("no", "yes"),
    ["accuracy_f1"],
    [("no", "yes")[int(i)] for i in golds],
    [("no", "yes")[int(i)] for i in predicted],
  )
  num_right = (golds & predicted).sum()
  assert scores["f1"] == pytest.approx(
    2 * num_right / (golds.sum() + predicted.sum())
  )


def test_numbers_agree_with_scipy():
  golds, predicted = np.random.RandomState(2).rand(2, 200)
  predicted = (predicted + golds).round(1)  # Rounding makes equal ranks.
  scores = class_scores(
    (), ["pearson_spearman"], golds.tolist(), predicted.tolist()
  )
  pearson = np.corrcoef(golds, predicted)[0, 1]
  ranks = stats.rankdata(golds), stats.rankdata(predicted)
  spearman = np.corrcoef(*ranks)[0, 1]
  assert scores["pearson"] == pytest.approx(pearson, abs=1e-9)
  assert scores["spearman"] == pytest.approx(spearman, abs=1e-9)
  mean = (pearson + spearman) / 2
  assert scores["pearson_spearman"] == pytest.approx(mean)
  scores = class_scores((), ["pearson_spearman"], [1.0, 2.0], [3.0, 3.0])
  assert math.isnan(scores["pearson_spearman"])
  # One example has no correlation.
  assert math.isnan(class_scores((), ["pearson"], [1.0], [1.0])["pearson"])
  assert math.isnan(
    class_scores((), ["spearman"], [1.0] * 2, [1.0, 2.0])["spearman"]
  )


def test_all_predictions_the_same_are_scored():
  golds, predicted = ["0", "1", "0"], ["0"] * 3
  scores = class_scores(
    BINARY, ["matthews", "f1", "f1_macro"], golds, predicted
  )
  assert scores["matthews"] == scores["f1"] == 0
  assert scores["f1_macro"] == pytest.approx(0.4)


def test_labels_go_by_name():
  """Names are compared, since a model may order its classes differently."""
  labels, other_order = ("c", "e", "n"), ("n", "e", "c")
  golds = [labels[i] for i in (2, 1, 0, 0)]
  predicted = [other_order[i] for i in (0, 1, 2, 2)]
  assert class_scores(labels, ["accuracy"], golds, predicted)["accuracy"] == 1
  with pytest.raises(
    ValueError, match="'x' of example 1 is not one of its labels"
  ):
    class_scores(labels, ["accuracy"], ["c", "c"], ["c", "x"])
  with pytest.raises(ValueError, match="label 'y' of example 0"):
    class_scores(labels, ["accuracy"], ["y"], ["c"])


def entities_by_conlleval(tags):
  """Returns the entities by the rule of CoNLL-2003's script."""
  entities, begin = set(), None
  for i, tag in enumerate([*tags, "O"]):
    previous_tag = tags[i - 1] if i else "O"
    is_same_type = tag[2:] == previous_tag[2:]
    if begin is not None and not (tag[0] == "I" and is_same_type):
      entities.add((previous_tag[2:], begin, i))
      begin = None
    if tag != "O" and (
      tag[0] == "B" or previous_tag == "O" or not is_same_type
    ):
      begin = i
  return entities


def entities_by_prefix(tags):
  """Returns the entities: each has a B- tag, then I- tags of the same type."""
  entities = set()
  for i, tag in enumerate(tags):
    if tag[0] == "B":
      end = i + 1
      while end < len(tags) and tags[end] == "I" + tag[1:]:
        end += 1
      entities.add((tag[2:], i, end))
  return entities


def f1_of_entities(entities, golds, predicted):
  rows = list(zip(map(entities, golds), map(entities, predicted), strict=True))
  num_shared = sum(len(a & b) for a, b in rows)
  num_entities = sum(len(a) + len(b) for a, b in rows)
  return 2 * num_shared / num_entities


def test_entities_by_both_rules():
  tags = ("O", "B-a", "I-a", "B-b", "I-b")
  rng = np.random.RandomState(3)
  golds, predicted = (
    [[tags[i] for i in rng.randint(5, size=9)] for _ in range(300)]
    for _ in range(2)
  )
  spec = task("tagging", tags, "tagging_f1", "tagging_f1_strict")
  scores = metrics.evaluate(spec, predicted, [{"tags": t} for t in golds])
  expected = f1_of_entities(entities_by_conlleval, golds, predicted)
  assert scores["tagging_f1"] == pytest.approx(expected, abs=1e-9)
  expected = f1_of_entities(entities_by_prefix, golds, predicted)
  assert scores["tagging_f1_strict"] == pytest.approx(expected, abs=1e-9)
  assert scores["tagging_f1"] != scores["tagging_f1_strict"]


@pytest.mark.parametrize(
  "golds, predicted, expected",
  [
    ("B-P I-P", "I-P I-P", (1.0, 0.0)),
    ("B-PER I-PER O B-LOC", "B-PER I-ORG O B-LOC", (0.4, 0.5)),
    ("B-P I-P I-P I-P", "B-P B-P I-P I-P", (0.0, 0.0)),
    ("O O", "O O", (0.0, 0.0)),
  ],
)
def test_entities_by_conlleval_and_strict(golds, predicted, expected):
  golds, predicted = golds.split(), predicted.split()
  spec = task(
    "tagging",
    (*golds, *predicted),
    "tagging_f1",
    "tagging_f1_strict",
    "accuracy",
  )
  scores = metrics.evaluate(spec, [predicted], [{"tags": golds}])
  assert (scores["tagging_f1"], scores["tagging_f1_strict"]) == expected
  is_same = [a == b for a, b in zip(golds, predicted, strict=True)]
  assert scores["accuracy"] == np.mean(is_same)


def test_conlleval_prints_thirds():
  golds = ["B-PER", "I-PER", "O", "B-LOC"]
  predicted = ["B-PER", "I-ORG", "O", "B-LOC"]
  spec = task("tagging", (*golds, *predicted), "tagging_f1")
  scores = metrics.evaluate(spec, [predicted], [{"tags": golds}])
  assert scores["precision"] == pytest.approx(1 / 3)
  assert scores["recall"] == 0.5


def test_entities_need_prefixes_and_one_tag_for_each_word():
  spec = task("tagging", ("NN", "VB"), "tagging_f1")
  with pytest.raises(
    ValueError, match="'NN' is not O and does not begin with B-"
  ):
    metrics.evaluate(spec, [["NN"]], [{"tags": ["VB"]}])
  spec = spec._replace(labels=("O",))
  with pytest.raises(ValueError, match="example 1 has 2 labels and 1 pred"):
    metrics.evaluate(
      spec, [["O"], ["O"]], [{"tags": ["O"]}, {"tags": ["O"] * 2}]
    )


def test_multirc_and_record():
  spec = task("classification", BINARY, "multirc")
  groups, golds, predicted = "aaabbc", [*"110010"], [*"110000"]
  examples = [
    {"group": g, "label": y} for g, y in zip(groups, golds, strict=True)
  ]
  scores = metrics.evaluate(spec, predicted, examples)
  assert scores["f1a"] == pytest.approx(0.8)
  assert scores["em"] == pytest.approx(2 / 3)
  assert scores["multirc"] == pytest.approx((0.8 + 2 / 3) / 2)

  spec = task("classification", ("false", "true"), "record")
  rows = [("q", "Ann", "true"), ("q", "Bob", "false"), ("r", "The Eve", "true")]
  examples = [
    dict(group=g, answer=a, answers=["Ann Lee", "eve"], label=y)
    for g, a, y in rows
  ]
  scores = metrics.evaluate(spec, ["true", "false", "true"], examples)
  assert scores["em"] == 0.5
  assert scores["f1"] == pytest.approx((2 / 3 + 1) / 2)


def test_masked_accuracy_counts_pieces():
  spec = task("choice", (), "masked_accuracy")
  golds, predicted = [[1, 2, 3], [4]], [[1, 0, 0], [4]]
  scores = metrics.evaluate(spec, predicted, with_labels(golds))
  assert scores["masked_accuracy"] == 0.5  # The mean of the texts is 2/3.


@pytest.mark.parametrize(
  "predicted, golds, expected",
  [
    ("the", "The", 1),
    ("", "", 1),
    ("a", "", 1),
    ("An apple", "apple.", 1),
    ("in the 10th and 11th centuries", "10th and 11th centuries", 0.888889),
    ("1880–1890", "18801890", 0),
    ("“x”", "x", 0),
    ("x\u00a0y", "x y", 1),
    ("cat", "", 0),
  ],
)
def test_words_shared_with_an_answer(predicted, golds, expected):
  assert squad_metrics.f1(predicted, golds) == pytest.approx(expected, abs=1e-6)
  assert squad_metrics.f1(golds, predicted) == pytest.approx(expected, abs=1e-6)


def test_answers_that_have_no_word_left():
  assert squad_metrics.f1("the", "The", "1.1") == 0
  assert squad_metrics.best_scores("The cat", ["dog", "cat", "a cat sat"]) == (
    1,
    1,
  )
  assert squad_metrics.best_scores("", []) == (1, 1)
  assert squad_metrics.best_scores("cat", []) == (0, 0)
  assert squad_metrics.best_scores("the", ["the", "the cat"]) == (0, 0)
  assert squad_metrics.best_scores("the", ["the", "the cat"], "1.1") == (1, 0)


def expected_squad2(texts, golds, odds, threshold):
  """Returns SQuAD 2.0's scores, computed one question at a time."""
  scores = [
    squad_metrics.best_scores(t, g) for t, g in zip(texts, golds, strict=True)
  ]
  scores_of_empty = (0.0, 0.0), (1.0, 1.0)
  scores_by_prefix = collections.defaultdict(list)
  for s, g, o in zip(scores, golds, odds, strict=True):
    s = scores_of_empty[not g] if o > threshold else s
    scores_by_prefix[""].append(s)
    scores_by_prefix["HasAns_" if g else "NoAns_"].append(s)
  results = {}
  for prefix, values in scores_by_prefix.items():
    em, f = 100 * np.mean(values, 0)
    results |= {f"{prefix}exact": em, f"{prefix}f1": f}
    results[f"{prefix}total"] = len(values)
  for column, name in enumerate(("exact", "f1")):
    best = 0.0
    for cut in [-math.inf, *odds]:
      scores_at_cut = [
        (not g) if o > cut else s[column]
        for s, g, o in zip(scores, golds, odds, strict=True)
      ]
      best = max(best, 100 * np.mean(scores_at_cut))
    results[f"best_{name}"] = best
  return results


def test_squad2_parts_and_threshold():
  rng = np.random.RandomState(4)
  words = ["red", "cat", "sat", "on", "mat"]
  texts, golds = [], []
  for i in range(150):
    text = " ".join(rng.choice(words, rng.randint(1, 4)))
    texts.append(text)
    golds.append([" ".join(rng.choice(words, 2)), text][i % 2 :] * (i % 3 > 0))
  odds = (rng.randn(150) - np.array([2 * (len(g) > 0) for g in golds])).tolist()
  scores = squad_metrics.squad2(texts, golds, odds, -0.5)
  expected = expected_squad2(texts, golds, odds, -0.5)
  assert {k: scores[k] for k in expected} == pytest.approx(expected, abs=1e-9)
  for name in ("exact", "f1"):
    cut = scores[f"best_{name}_thresh"]
    scores_at_cut = squad_metrics.squad2(texts, golds, odds, cut)
    assert scores_at_cut[name] == pytest.approx(scores[f"best_{name}"])


def official_search(texts, golds, odds, column):
  """Returns what `find_best_thresh` of evaluate-v2.0.py returns."""
  scores = [
    squad_metrics.best_scores(t, g)[column]
    for t, g in zip(texts, golds, strict=True)
  ]
  current = best = sum(not g for g in golds)
  cut = 0.0
  for i in sorted(range(len(texts)), key=lambda i: odds[i]):
    if golds[i]:
      current += scores[i]
    elif texts[i]:
      current -= 1
    if current > best:
      best, cut = current, odds[i]
  return 100.0 * best / len(texts), cut


# Each case has predicted answers, gold answers, and odds that there is no
# answer. Then follow the best score and its threshold, the score and threshold
# of the official search, and the score that the official threshold gives.
CASES = [
  (["zz", "yy"], [[], []], [-5.0, -4.0], (100, -6.0), (100, 0.0), 0),
  (
    *(["a cat", "x", "x", "dog"], [["cat"], [], [], ["dog"]], [0.0] * 4),
    *((50, -1.0), (75, 0.0), 50),
  ),
  (
    *(["cat", "", "x"], [["cat"], [], []], [1.0, 1.0, 2.0]),
    *((100, 1.0), (100, 1.0), 100),
  ),
  (["x"], [["cat"]], [-3.0], (0, -4.0), (0, 0.0), 0),
]


@pytest.mark.parametrize("texts, golds, odds, best, official, gives", CASES)
def test_a_best_threshold_gives_its_score(
  texts, golds, odds, best, official, gives
):
  scores = squad_metrics.squad2(texts, golds, odds)
  for name in ("exact", "f1"):
    best_pair = scores[f"best_{name}"], scores[f"best_{name}_thresh"]
    assert best_pair == best
    assert squad_metrics.squad2(texts, golds, odds, best[1])[name] == best[0]
  scores = squad_metrics.squad2(texts, golds, odds, search="official")
  best_pair = scores["best_f1"], scores["best_f1_thresh"]
  assert best_pair == official == official_search(texts, golds, odds, 1)
  assert squad_metrics.squad2(texts, golds, odds, official[1])["f1"] == gives


@pytest.mark.parametrize("seed", range(20))
def test_thresholds_of_many_equal_odds(seed):
  rng = np.random.RandomState(seed)
  words = ["red", "cat", "sat"]
  texts = [" ".join(rng.choice(words, rng.randint(0, 3))) for _ in range(30)]
  golds = [[" ".join(rng.choice(words, 2))][: rng.randint(2)] for _ in texts]
  odds = rng.randint(-2, 3, 30).astype(float).tolist()
  scores = squad_metrics.squad2(texts, golds, odds)
  expected = expected_squad2(texts, golds, odds, 1.0)
  official = squad_metrics.squad2(texts, golds, odds, search="official")
  for column, name in enumerate(("exact", "f1")):
    assert scores[f"best_{name}"] == pytest.approx(expected[f"best_{name}"])
    cut = scores[f"best_{name}_thresh"]
    scores_at_cut = squad_metrics.squad2(texts, golds, odds, cut)
    assert scores_at_cut[name] == pytest.approx(scores[f"best_{name}"])
    expected_score, cut = official_search(texts, golds, odds, column)
    assert official[f"best_{name}"] == pytest.approx(expected_score)
    assert official[f"best_{name}_thresh"] == cut
  with pytest.raises(
    ValueError, match="search 'x' is not one of reachable, off"
  ):
    squad_metrics.squad2(texts, golds, odds, search="x")


@pytest.mark.parametrize("seed", range(10))
def test_answers_without_a_word_at_every_threshold(seed):
  """The best score is the largest one that any threshold gives."""
  rng = np.random.RandomState(seed)
  words = np.array(["the", ".", "", "cat", "a cat", "red cat"])
  texts = rng.choice(words, 12).tolist()
  golds = [[rng.choice(words[3:])][: rng.randint(2)] for _ in texts]
  odds = rng.choice([-1e300, -1.0, 0.0, 0.5, 3.0, 7.0], 12).tolist()
  all_scores = [
    squad_metrics.squad2(texts, golds, odds, cut)
    for cut in [-np.inf, *odds, np.inf]
  ]
  scores = squad_metrics.squad2(texts, golds, odds)
  for name in ("exact", "f1"):
    best = max(scores_at_cut[name] for scores_at_cut in all_scores)
    assert scores[f"best_{name}"] == pytest.approx(best)
    scores_at_best = squad_metrics.squad2(
      texts, golds, odds, scores[f"best_{name}_thresh"]
    )
    assert scores_at_best[name] == pytest.approx(best)
  official = squad_metrics.squad2(texts, golds, odds, search="official")
  for column, name in enumerate(("exact", "f1")):
    expected_score, cut = official_search(texts, golds, odds, column)
    assert official[f"best_{name}"] == pytest.approx(expected_score)
    assert official[f"best_{name}_thresh"] == cut


def test_answers_without_a_word_to_questions_without_an_answer():
  texts = ["cat", "dog", "the", "a cat", "dog"]
  golds = [[], ["dog"], [], ["dog", "cat"], ["dog", "cat"]]
  odds = [-1, -1e300, 0.5, 0, 3]
  scores = squad_metrics.squad2(texts, golds, odds, threshold=0.0)
  assert scores["best_exact"] == scores["best_f1"] == 80
  assert squad_metrics.squad2(texts, golds, odds, threshold=3)["exact"] == 80
  official = squad_metrics.squad2(texts, golds, odds, search="official")
  assert official["best_exact"] == 60


def test_squad_metrics_of_predictions():
  examples = [
    dict(answers=[{"text": "red cat", "answer_start": 0}] * 2),
    dict(answers=[]),
    dict(answers=None),
  ]
  predicted = [
    dict(text="", best="the red cat", null_odds=0.5),
    dict(text="mat", best="mat", null_odds=-0.25),
    dict(text="mat", best="mat", null_odds=0.0),
  ]
  scores = metrics.evaluate(task("span", (), "squad2"), predicted, examples)
  assert scores["examples"] == 2
  assert scores["squad2"] == scores["f1"] == 0
  assert scores["best_f1"] == 50
  assert scores["HasAns_total"] == scores["NoAns_total"] == 1
  scores = metrics.evaluate(
    task("span", (), "squad"), predicted[1:], examples[::2]
  )
  assert scores == {
    "squad": 0.0, "exact_match": 0.0, "f1": 0.0, "examples": 1.0
  }  # fmt: skip


def test_without_labels_there_are_no_metrics():
  for kind, key in (
    ("classification", "label"),
    ("choice", "label"),
    ("tagging", "tags"),
    ("span", "answers"),
  ):
    assert (
      metrics.evaluate(task(kind, ("O",), "f1"), ["O"], [{key: None}]) == {}
    )
  examples = with_labels(["1", None, "0"])
  scores = metrics.evaluate(
    task("classification", BINARY, "accuracy"), ["1", "1", "1"], examples
  )
  assert scores == {"accuracy": 0.5, "examples": 2.0}


def test_wrong_predictions_and_metrics_are_refused():
  spec = task("classification", BINARY, "accuracy")
  with pytest.raises(ValueError, match="are 2 predictions for 1 examples"):
    metrics.evaluate(spec, ["0", "1"], with_labels("0"))
  with pytest.raises(
    ValueError, match="no metric 'acuracy'; the metrics are acc"
  ):
    metrics.evaluate(
      spec._replace(metrics=("acuracy",)), ["0"], with_labels("0")
    )
  spec_of_three_classes = spec._replace(labels=("a", "b", "c"), metrics=("f1",))
  with pytest.raises(ValueError, match="f1 needs two classes, and there are 3"):
    metrics.evaluate(spec_of_three_classes, ["a"], with_labels("a"))


def test_a_missing_package_is_named(monkeypatch):
  def raise_import_error(name):
    raise ImportError(name)

  monkeypatch.setattr(metrics.importlib, "import_module", raise_import_error)
  spec = task("tagging", ("O",), "tagging_f1")
  with pytest.raises(ValueError, match="pip install seqeval"):
    metrics.evaluate(spec, [["O"]], [{"tags": ["O"]}])


def test_numbers_are_json():
  scores = class_scores(
    BINARY, ["accuracy_f1", "matthews"], ["0", "1"], ["0", "1"]
  )
  assert json.loads(json.dumps(scores)) == scores
  assert all(type(number) is float for number in scores.values())


@pytest.mark.parametrize(
  "kind, labels, metric, golds, predicted, wanted",
  [
    (
      *("regression", (), "pearson", [1.0, 2.0, 3.0], [0.5] * 3),
      ["all predictions of 3 examples are 0.5: pearson is not defined."],
    ),
    (
      *("regression", (), "pearson_spearman", [2.0] * 3, [0.5, 1.0, 2.0]),
      ["all labels of 3 examples are 2.0: pearson_spearman is not defined."],
    ),
    ("regression", (), "pearson", [1.0, 2.0], [1.0, 0.0], []),
    (
      *("classification", BINARY, "matthews", [*"010"], [*"111"]),
      ["all predictions of 3 examples are '1': matthews says little."],
    ),
    ("classification", BINARY, "accuracy", [*"010"], [*"101"], []),
    (
      *("multi_label", ("a", "b"), "f1_micro", [["a"], ["b"]], [[], []]),
      ["all predictions of 2 examples are []: f1_micro says little."],
    ),
    (
      *("tagging", ("O", "B-X"), "tagging_f1", [["O", "B-X"]], [["O", "O"]]),
      ["all predicted tags are O, so there is no entity: tagging_f1 is 0."],
    ),
    (
      *("tagging", ("O", "B-X"), "tagging_f1", [["O", "O"]], [["O", "B-X"]]),
      ["all gold tags are O, so there is no entity: tagging_f1 is 0."],
    ),
    (
      *("tagging", ("N", "V"), "accuracy", [["N", "V"]], [["N", "N"]]),
      ["all predictions of 2 words are 'N': accuracy says little."],
    ),
    ("tagging", ("O", "B-X"), "tagging_f1", [["B-X", "O"]], [["B-X"] * 2], []),
    ("classification", BINARY, "accuracy", [None] * 3, [*"111"], []),
  ],
)
def test_a_metric_that_says_little_is_named(
  kind, labels, metric, golds, predicted, wanted
):
  field = "tags" if kind == "tagging" else "label"
  examples = [{field: x} for x in golds]
  spec = task(kind, labels, metric)
  assert metrics.score_warnings(spec, predicted, examples) == wanted
