"""Official metrics, against their libraries and against the rules restated."""

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


def labelled(values):
  return [{"label": value} for value in values]


def score(labels, names, right, ours):
  kind = "classification" if labels else "regression"
  return metrics.evaluate(task(kind, labels, *names), ours, labelled(right))


def test_a_whole_set_is_no_mean_of_batches():
  right, ours = [*"1" * 10], [*"1" * 8, "0", "0"]
  scores = score(BINARY, ["accuracy"], right, ours)
  assert scores == {"accuracy": 0.8, "examples": 10.0}

  right, ours = [*"11101000"], [*"11001101"]
  scores = score(BINARY, ["matthews", "f1"], right, ours)
  assert scores["matthews"] == pytest.approx(0.258199, abs=1e-6)
  assert scores["f1"] == pytest.approx(0.666667, abs=1e-6)
  order = np.random.RandomState(0).permutation(8)
  again = [[row[i] for i in order] for row in (right, ours)]
  assert score(BINARY, ["matthews", "f1"], *again) == pytest.approx(scores)

  scores = score((), ["pearson"], [0, 1, 2, 3, 4, 5], [1, 2, 3, 0, 1, 2])
  assert scores["pearson"] == pytest.approx(-0.050965, abs=1e-6)


def test_classes_agree_with_scikit_learn():
  rng = np.random.RandomState(1)
  names = ("contradiction", "entailment", "neutral")
  right, ours = rng.randint(3, size=(2, 400))
  scores = score(
    names,
    ["accuracy_f1_macro", "matthews"],
    [names[i] for i in right],
    [names[i] for i in ours],
  )
  macro = sklearn.f1_score(right, ours, average="macro")
  assert scores["accuracy"] == pytest.approx(np.mean(right == ours))
  assert scores["f1_macro"] == pytest.approx(macro)
  mean = (np.mean(right == ours) + macro) / 2
  assert scores["accuracy_f1_macro"] == pytest.approx(mean)
  matthews = sklearn.matthews_corrcoef(right, ours)
  assert scores["matthews"] == pytest.approx(matthews)
  assert next(iter(scores)) == "accuracy_f1_macro"

  right, ours = rng.rand(2, 300) < 0.3
  scores = score(
    ("no", "yes"),
    ["accuracy_f1"],
    [("no", "yes")[int(i)] for i in right],
    [("no", "yes")[int(i)] for i in ours],
  )
  hit = (right & ours).sum()
  assert scores["f1"] == pytest.approx(2 * hit / (right.sum() + ours.sum()))


def test_numbers_agree_with_scipy():
  right, ours = np.random.RandomState(2).rand(2, 200)
  ours = (ours + right).round(1)  # Ties among the ranks.
  scores = score((), ["pearson_spearman"], right.tolist(), ours.tolist())
  pearson = np.corrcoef(right, ours)[0, 1]
  ranks = stats.rankdata(right), stats.rankdata(ours)
  spearman = np.corrcoef(*ranks)[0, 1]
  assert scores["pearson"] == pytest.approx(pearson, abs=1e-9)
  assert scores["spearman"] == pytest.approx(spearman, abs=1e-9)
  mean = (pearson + spearman) / 2
  assert scores["pearson_spearman"] == pytest.approx(mean)
  scores = score((), ["pearson_spearman"], [1.0, 2.0], [3.0, 3.0])
  assert math.isnan(scores["pearson_spearman"])
  # One example has no correlation.
  assert math.isnan(score((), ["pearson"], [1.0], [1.0])["pearson"])
  assert math.isnan(score((), ["spearman"], [1.0] * 2, [1.0, 2.0])["spearman"])


def test_all_predictions_the_same_are_scored():
  right, ours = ["0", "1", "0"], ["0"] * 3
  scores = score(BINARY, ["matthews", "f1", "f1_macro"], right, ours)
  assert scores["matthews"] == scores["f1"] == 0
  assert scores["f1_macro"] == pytest.approx(0.4)


def test_labels_go_by_name():
  """Of a checkpoint whose classes have another order, names are what counts."""
  ours, theirs = ("c", "e", "n"), ("n", "e", "c")
  right = [ours[i] for i in (2, 1, 0, 0)]
  predicted = [theirs[i] for i in (0, 1, 2, 2)]
  assert score(ours, ["accuracy"], right, predicted)["accuracy"] == 1
  with pytest.raises(
    ValueError, match="'x' of example 1 is none of its labels"
  ):
    score(ours, ["accuracy"], ["c", "c"], ["c", "x"])
  with pytest.raises(ValueError, match="label 'y' of example 0"):
    score(ours, ["accuracy"], ["y"], ["c"])


def conlleval(tags):
  """Entities by the rule of CoNLL-2003's script."""
  found, begin = set(), None
  for i, tag in enumerate([*tags, "O"]):
    before = tags[i - 1] if i else "O"
    same = tag[2:] == before[2:]
    if begin is not None and not (tag[0] == "I" and same):
      found.add((before[2:], begin, i))
      begin = None
    if tag != "O" and (tag[0] == "B" or before == "O" or not same):
      begin = i
  return found


def strict(tags):
  """Entities that begin at B-, with all that follows of their type."""
  found = set()
  for i, tag in enumerate(tags):
    if tag[0] == "B":
      end = i + 1
      while end < len(tags) and tags[end] == "I" + tag[1:]:
        end += 1
      found.add((tag[2:], i, end))
  return found


def f1_of(entities, right, ours):
  rows = list(zip(map(entities, right), map(entities, ours), strict=True))
  both = sum(len(a & b) for a, b in rows)
  total = sum(len(a) + len(b) for a, b in rows)
  return 2 * both / total


def test_entities_by_both_rules():
  tags = ("O", "B-a", "I-a", "B-b", "I-b")
  rng = np.random.RandomState(3)
  right, ours = (
    [[tags[i] for i in rng.randint(5, size=9)] for _ in range(300)]
    for _ in range(2)
  )
  mine = task("tagging", tags, "tagging_f1", "tagging_f1_strict")
  scores = metrics.evaluate(mine, ours, [{"tags": t} for t in right])
  expected = f1_of(conlleval, right, ours)
  assert scores["tagging_f1"] == pytest.approx(expected, abs=1e-9)
  expected = f1_of(strict, right, ours)
  assert scores["tagging_f1_strict"] == pytest.approx(expected, abs=1e-9)
  assert scores["tagging_f1"] != scores["tagging_f1_strict"]


@pytest.mark.parametrize(
  "right, ours, expected",
  [
    ("B-P I-P", "I-P I-P", (1.0, 0.0)),
    ("B-PER I-PER O B-LOC", "B-PER I-ORG O B-LOC", (0.4, 0.5)),
    ("B-P I-P I-P I-P", "B-P B-P I-P I-P", (0.0, 0.0)),
    ("O O", "O O", (0.0, 0.0)),
  ],
)
def test_conlleval_is_the_rule_and_strict_is_by_name(right, ours, expected):
  right, ours = right.split(), ours.split()
  mine = task(
    "tagging", (*right, *ours), "tagging_f1", "tagging_f1_strict", "accuracy"
  )
  scores = metrics.evaluate(mine, [ours], [{"tags": right}])
  assert (scores["tagging_f1"], scores["tagging_f1_strict"]) == expected
  same = [a == b for a, b in zip(right, ours, strict=True)]
  assert scores["accuracy"] == np.mean(same)


def test_conlleval_prints_thirds():
  right, ours = "B-PER I-PER O B-LOC".split(), "B-PER I-ORG O B-LOC".split()
  mine = task("tagging", (*right, *ours), "tagging_f1")
  scores = metrics.evaluate(mine, [ours], [{"tags": right}])
  assert scores["precision"] == pytest.approx(1 / 3)
  assert scores["recall"] == 0.5


def test_entities_need_prefixes_and_a_tag_a_word():
  mine = task("tagging", ("NN", "VB"), "tagging_f1")
  with pytest.raises(ValueError, match="'NN' is neither O nor begins with B-"):
    metrics.evaluate(mine, [["NN"]], [{"tags": ["VB"]}])
  mine = mine._replace(labels=("O",))
  with pytest.raises(ValueError, match="example 1 has 2 labels and 1 pred"):
    metrics.evaluate(
      mine, [["O"], ["O"]], [{"tags": ["O"]}, {"tags": ["O"] * 2}]
    )


def test_multirc_and_record():
  mine = task("classification", BINARY, "multirc")
  groups, right, ours = "aaabbc", [*"110010"], [*"110000"]
  examples = [
    {"group": g, "label": y} for g, y in zip(groups, right, strict=True)
  ]
  scores = metrics.evaluate(mine, ours, examples)
  assert scores["f1a"] == pytest.approx(0.8)
  assert scores["em"] == pytest.approx(2 / 3)
  assert scores["multirc"] == pytest.approx((0.8 + 2 / 3) / 2)

  mine = task("classification", ("false", "true"), "record")
  rows = [("q", "Ann", "true"), ("q", "Bob", "false"), ("r", "The Eve", "true")]
  examples = [
    dict(group=g, answer=a, answers=["Ann Lee", "eve"], label=y)
    for g, a, y in rows
  ]
  scores = metrics.evaluate(mine, ["true", "false", "true"], examples)
  assert scores["em"] == 0.5
  assert scores["f1"] == pytest.approx((2 / 3 + 1) / 2)


def test_masked_accuracy_counts_pieces():
  mine = task("choice", (), "masked_accuracy")
  right, ours = [[1, 2, 3], [4]], [[1, 0, 0], [4]]
  scores = metrics.evaluate(mine, ours, labelled(right))
  assert scores["masked_accuracy"] == 0.5  # The mean of the texts is 2/3.


@pytest.mark.parametrize(
  "ours, right, expected",
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
def test_words_shared_with_an_answer(ours, right, expected):
  assert squad_metrics.f1(ours, right) == pytest.approx(expected, abs=1e-6)
  assert squad_metrics.f1(right, ours) == pytest.approx(expected, abs=1e-6)


def test_answers_that_have_no_word_left():
  assert squad_metrics.f1("the", "The", "1.1") == 0
  assert squad_metrics.best("The cat", ["dog", "cat", "a cat sat"]) == (1, 1)
  assert squad_metrics.best("", []) == (1, 1)
  assert squad_metrics.best("cat", []) == (0, 0)
  assert squad_metrics.best("the", ["the", "the cat"]) == (0, 0)
  assert squad_metrics.best("the", ["the", "the cat"], "1.1") == (1, 0)


def squad2_by_hand(texts, golds, odds, threshold):
  """The questions one by one: what each rule says of each."""
  scores = [squad_metrics.best(t, g) for t, g in zip(texts, golds, strict=True)]
  null = (0.0, 0.0), (1.0, 1.0)
  total = collections.defaultdict(list)
  for s, g, o in zip(scores, golds, odds, strict=True):
    s = null[not g] if o > threshold else s
    total[""].append(s)
    total["HasAns_" if g else "NoAns_"].append(s)
  result = {}
  for prefix, values in total.items():
    em, f = 100 * np.mean(values, 0)
    result |= {f"{prefix}exact": em, f"{prefix}f1": f}
    result[f"{prefix}total"] = len(values)
  for column, name in enumerate(("exact", "f1")):
    best = 0.0
    for cut in [-math.inf, *odds]:
      kept = [
        (not g) if o > cut else s[column]
        for s, g, o in zip(scores, golds, odds, strict=True)
      ]
      best = max(best, 100 * np.mean(kept))
    result[f"best_{name}"] = best
  return result


def test_squad2_parts_and_threshold():
  rng = np.random.RandomState(4)
  words = "red cat sat on mat".split()
  texts, golds = [], []
  for i in range(150):
    text = " ".join(rng.choice(words, rng.randint(1, 4)))
    texts.append(text)
    golds.append([" ".join(rng.choice(words, 2)), text][i % 2 :] * (i % 3 > 0))
  odds = (rng.randn(150) - np.array([2 * (len(g) > 0) for g in golds])).tolist()
  scores = squad_metrics.squad2(texts, golds, odds, -0.5)
  expected = squad2_by_hand(texts, golds, odds, -0.5)
  assert {k: scores[k] for k in expected} == pytest.approx(expected, abs=1e-9)
  for name in ("exact", "f1"):
    cut = scores[f"best_{name}_thresh"]
    again = squad_metrics.squad2(texts, golds, odds, cut)
    assert again[name] == pytest.approx(scores[f"best_{name}"])


def official_search(texts, golds, odds, column):
  """evaluate-v2.0.py, find_best_thresh, written out again."""
  scores = [
    squad_metrics.best(t, g)[column] for t, g in zip(texts, golds, strict=True)
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


# Answers, right ones, odds; the best score and its threshold; those of the
# official search, and what its threshold gives.
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
    found = scores[f"best_{name}"], scores[f"best_{name}_thresh"]
    assert found == best
    assert squad_metrics.squad2(texts, golds, odds, best[1])[name] == best[0]
  scores = squad_metrics.squad2(texts, golds, odds, search="official")
  found = scores["best_f1"], scores["best_f1_thresh"]
  assert found == official == official_search(texts, golds, odds, 1)
  assert squad_metrics.squad2(texts, golds, odds, official[1])["f1"] == gives


@pytest.mark.parametrize("seed", range(20))
def test_thresholds_of_many_equal_odds(seed):
  rng = np.random.RandomState(seed)
  words = "red cat sat".split()
  texts = [" ".join(rng.choice(words, rng.randint(0, 3))) for _ in range(30)]
  golds = [[" ".join(rng.choice(words, 2))][: rng.randint(2)] for _ in texts]
  odds = rng.randint(-2, 3, 30).astype(float).tolist()
  scores = squad_metrics.squad2(texts, golds, odds)
  expected = squad2_by_hand(texts, golds, odds, 1.0)
  found = squad_metrics.squad2(texts, golds, odds, search="official")
  for column, name in enumerate(("exact", "f1")):
    assert scores[f"best_{name}"] == pytest.approx(expected[f"best_{name}"])
    cut = scores[f"best_{name}_thresh"]
    again = squad_metrics.squad2(texts, golds, odds, cut)
    assert again[name] == pytest.approx(scores[f"best_{name}"])
    value, cut = official_search(texts, golds, odds, column)
    assert found[f"best_{name}"] == pytest.approx(value)
    assert found[f"best_{name}_thresh"] == cut
  with pytest.raises(ValueError, match="search 'x': not one of reachable, off"):
    squad_metrics.squad2(texts, golds, odds, search="x")


@pytest.mark.parametrize("seed", range(10))
def test_answers_without_a_word_at_every_threshold(seed):
  """The best score is the largest one that any threshold gives."""
  rng = np.random.RandomState(seed)
  words = np.array(["the", ".", "", "cat", "a cat", "red cat"])
  texts = rng.choice(words, 12).tolist()
  golds = [[rng.choice(words[3:])][: rng.randint(2)] for _ in texts]
  odds = rng.choice([-1e300, -1.0, 0.0, 0.5, 3.0, 7.0], 12).tolist()
  every = [
    squad_metrics.squad2(texts, golds, odds, cut)
    for cut in [-np.inf, *odds, np.inf]
  ]
  scores = squad_metrics.squad2(texts, golds, odds)
  for name in ("exact", "f1"):
    best = max(found[name] for found in every)
    assert scores[f"best_{name}"] == pytest.approx(best)
    again = squad_metrics.squad2(
      texts, golds, odds, scores[f"best_{name}_thresh"]
    )
    assert again[name] == pytest.approx(best)
  found = squad_metrics.squad2(texts, golds, odds, search="official")
  for column, name in enumerate(("exact", "f1")):
    value, cut = official_search(texts, golds, odds, column)
    assert found[f"best_{name}"] == pytest.approx(value)
    assert found[f"best_{name}_thresh"] == cut


def test_answers_without_a_word_where_no_answer_is_right():
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
  ours = [
    dict(text="", best="the red cat", null_odds=0.5),
    dict(text="mat", best="mat", null_odds=-0.25),
    dict(text="mat", best="mat", null_odds=0.0),
  ]
  scores = metrics.evaluate(task("span", (), "squad2"), ours, examples)
  assert scores["examples"] == 2
  assert scores["squad2"] == scores["f1"] == 0
  assert scores["best_f1"] == 50
  assert scores["HasAns_total"] == scores["NoAns_total"] == 1
  scores = metrics.evaluate(task("span", (), "squad"), ours[1:], examples[::2])
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
  examples = labelled(["1", None, "0"])
  scores = metrics.evaluate(
    task("classification", BINARY, "accuracy"), ["1", "1", "1"], examples
  )
  assert scores == {"accuracy": 0.5, "examples": 2.0}


def test_what_does_not_fit_is_refused():
  mine = task("classification", BINARY, "accuracy")
  with pytest.raises(ValueError, match="2 predictions of 1 examples"):
    metrics.evaluate(mine, ["0", "1"], labelled("0"))
  with pytest.raises(ValueError, match="no metric 'acuracy'; there are acc"):
    metrics.evaluate(mine._replace(metrics=("acuracy",)), ["0"], labelled("0"))
  three = mine._replace(labels=("a", "b", "c"), metrics=("f1",))
  with pytest.raises(ValueError, match="f1 is of two classes, not 3"):
    metrics.evaluate(three, ["a"], labelled("a"))


def test_a_missing_package_is_named(monkeypatch):
  def broken(name):
    raise ImportError(name)

  monkeypatch.setattr(metrics.importlib, "import_module", broken)
  mine = task("tagging", ("O",), "tagging_f1")
  with pytest.raises(ValueError, match="pip install seqeval"):
    metrics.evaluate(mine, [["O"]], [{"tags": ["O"]}])


def test_numbers_are_json():
  scores = score(BINARY, ["accuracy_f1", "matthews"], ["0", "1"], ["0", "1"])
  assert json.loads(json.dumps(scores)) == scores
  assert all(type(value) is float for value in scores.values())


@pytest.mark.parametrize(
  "kind, labels, metric, right, ours, wanted",
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
      ["no predicted tag is an entity's, all are O: tagging_f1 is 0."],
    ),
    (
      *("tagging", ("O", "B-X"), "tagging_f1", [["O", "O"]], [["O", "B-X"]]),
      ["no right tag is an entity's, all are O: tagging_f1 is 0."],
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
  kind, labels, metric, right, ours, wanted
):
  field = "tags" if kind == "tagging" else "label"
  examples = [{field: x} for x in right]
  mine = task(kind, labels, metric)
  assert metrics.doubts(mine, ours, examples) == wanted
