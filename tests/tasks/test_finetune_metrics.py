"""Tests metrics against official libraries and functions of this file."""

import collections
import json
import math

import numpy as np
import pytest

from bert_jax.tasks import metrics, squad_metrics
from bert_jax.tasks.encoded_rows import Task

sklearn_metrics = pytest.importorskip("sklearn.metrics")
stats = pytest.importorskip("scipy.stats")
pytest.importorskip("seqeval.metrics")

BINARY_LABELS = ("0", "1")


def make_task(kind, labels, *metric_names):
  return Task("mine", kind, labels, num_choices=1, metrics=metric_names)


def with_labels(values):
  return [{"label": label} for label in values]


def scores_of(labels, metric_names, golds, predicted):
  kind = "classification" if labels else "regression"
  return metrics.evaluate(
    make_task(kind, labels, *metric_names), predicted, with_labels(golds)
  )


def test_known_scores_in_any_order_of_examples():
  golds, predicted = [*"1" * 10], [*"1" * 8, "0", "0"]
  scores = scores_of(BINARY_LABELS, ["accuracy"], golds, predicted)
  assert scores == {"accuracy": 0.8, "examples": 10.0}

  golds, predicted = [*"11101000"], [*"11001101"]
  scores = scores_of(BINARY_LABELS, ["matthews", "f1"], golds, predicted)
  assert scores["matthews"] == pytest.approx(0.258199, abs=1e-6)
  assert scores["f1"] == pytest.approx(0.666667, abs=1e-6)
  order = np.random.RandomState(0).permutation(8)
  shuffled_labels = [[row[i] for i in order] for row in (golds, predicted)]
  assert scores_of(
    BINARY_LABELS, ["matthews", "f1"], *shuffled_labels
  ) == pytest.approx(scores)

  scores = scores_of((), ["pearson"], [0, 1, 2, 3, 4, 5], [1, 2, 3, 0, 1, 2])
  assert scores["pearson"] == pytest.approx(-0.050965, abs=1e-6)


def test_classes_agree_with_scikit_learn():
  rng = np.random.RandomState(1)
  classes = ("contradiction", "entailment", "neutral")
  golds, predicted = rng.randint(3, size=(2, 400))
  scores = scores_of(
    classes,
    ["accuracy_f1_macro", "matthews"],
    [classes[i] for i in golds],
    [classes[i] for i in predicted],
  )
  f1_macro = sklearn_metrics.f1_score(golds, predicted, average="macro")
  assert scores["accuracy"] == pytest.approx(np.mean(golds == predicted))
  assert scores["f1_macro"] == pytest.approx(f1_macro)
  mean_score = (np.mean(golds == predicted) + f1_macro) / 2
  assert scores["accuracy_f1_macro"] == pytest.approx(mean_score)
  matthews = sklearn_metrics.matthews_corrcoef(golds, predicted)
  assert scores["matthews"] == pytest.approx(matthews)
  assert next(iter(scores)) == "accuracy_f1_macro"

  golds, predicted = rng.rand(2, 300) < 0.3
  scores = scores_of(
    ("no", "yes"),
    ["accuracy_f1"],
    [("no", "yes")[int(i)] for i in golds],
    [("no", "yes")[int(i)] for i in predicted],
  )
  num_true_positives = (golds & predicted).sum()
  assert scores["f1"] == pytest.approx(
    2 * num_true_positives / (golds.sum() + predicted.sum())
  )


def test_numbers_agree_with_scipy():
  golds, predicted = np.random.RandomState(2).rand(2, 200)
  predicted = (predicted + golds).round(1)  # Rounding makes ties.
  scores = scores_of(
    (), ["pearson_spearman"], golds.tolist(), predicted.tolist()
  )
  pearson = np.corrcoef(golds, predicted)[0, 1]
  ranks = stats.rankdata(golds), stats.rankdata(predicted)
  spearman = np.corrcoef(*ranks)[0, 1]
  assert scores["pearson"] == pytest.approx(pearson, abs=1e-9)
  assert scores["spearman"] == pytest.approx(spearman, abs=1e-9)
  mean_score = (pearson + spearman) / 2
  assert scores["pearson_spearman"] == pytest.approx(mean_score)
  scores = scores_of((), ["pearson_spearman"], [1.0, 2.0], [3.0, 3.0])
  assert math.isnan(scores["pearson_spearman"])
  # A correlation of a single example is not defined.
  assert math.isnan(scores_of((), ["pearson"], [1.0], [1.0])["pearson"])
  assert math.isnan(
    scores_of((), ["spearman"], [1.0] * 2, [1.0, 2.0])["spearman"]
  )


def test_one_prediction_for_all_examples_is_scored():
  golds, predicted = ["0", "1", "0"], ["0"] * 3
  scores = scores_of(
    BINARY_LABELS, ["matthews", "f1", "f1_macro"], golds, predicted
  )
  assert scores["matthews"] == scores["f1"] == 0
  assert scores["f1_macro"] == pytest.approx(0.4)


def test_labels_are_compared_by_name():
  """Scores a model that orders the classes in another way than the task.

  All its predictions have the right names, so its accuracy must be 1.
  """
  labels, model_labels = ("c", "e", "n"), ("n", "e", "c")
  golds = [labels[i] for i in (2, 1, 0, 0)]
  predicted = [model_labels[i] for i in (0, 1, 2, 2)]
  assert scores_of(labels, ["accuracy"], golds, predicted)["accuracy"] == 1
  with pytest.raises(
    ValueError, match="'x' of example 1 is not one of its labels"
  ):
    scores_of(labels, ["accuracy"], ["c", "c"], ["c", "x"])
  with pytest.raises(ValueError, match="label 'y' of example 0"):
    scores_of(labels, ["accuracy"], ["y"], ["c"])


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


def entities_by_strict_rule(tags):
  """Returns the entities: each has a B- tag, then I- tags of the same type."""
  entities = set()
  for i, tag in enumerate(tags):
    if tag[0] == "B":
      end = i + 1
      while end < len(tags) and tags[end] == "I" + tag[1:]:
        end += 1
      entities.add((tag[2:], i, end))
  return entities


def f1_of_entities(find_entities, golds, predicted):
  entity_sets = list(
    zip(map(find_entities, golds), map(find_entities, predicted), strict=True)
  )
  num_shared = sum(len(gold & predicted) for gold, predicted in entity_sets)
  num_entities = sum(
    len(gold) + len(predicted) for gold, predicted in entity_sets
  )
  return 2 * num_shared / num_entities


def test_entity_scores_agree_with_both_rules():
  tags = ("O", "B-a", "I-a", "B-b", "I-b")
  rng = np.random.RandomState(3)
  golds, predicted = (
    [[tags[i] for i in rng.randint(5, size=9)] for _ in range(300)]
    for _ in range(2)
  )
  task = make_task("tagging", tags, "tagging_f1", "tagging_f1_strict")
  scores = metrics.evaluate(
    task, predicted, [{"tags": gold_tags} for gold_tags in golds]
  )
  expected = f1_of_entities(entities_by_conlleval, golds, predicted)
  assert scores["tagging_f1"] == pytest.approx(expected, abs=1e-9)
  expected = f1_of_entities(entities_by_strict_rule, golds, predicted)
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
def test_known_entity_scores_by_both_rules(golds, predicted, expected):
  golds, predicted = golds.split(), predicted.split()
  task = make_task(
    "tagging",
    (*golds, *predicted),
    "tagging_f1",
    "tagging_f1_strict",
    "accuracy",
  )
  scores = metrics.evaluate(task, [predicted], [{"tags": golds}])
  assert (scores["tagging_f1"], scores["tagging_f1_strict"]) == expected
  is_same = [
    gold == predicted_tag
    for gold, predicted_tag in zip(golds, predicted, strict=True)
  ]
  assert scores["accuracy"] == np.mean(is_same)


def test_precision_and_recall_agree_with_conlleval():
  golds = ["B-PER", "I-PER", "O", "B-LOC"]
  predicted = ["B-PER", "I-ORG", "O", "B-LOC"]
  task = make_task("tagging", (*golds, *predicted), "tagging_f1")
  scores = metrics.evaluate(task, [predicted], [{"tags": golds}])
  assert scores["precision"] == pytest.approx(1 / 3)
  assert scores["recall"] == 0.5


def test_entities_need_prefixes_and_one_tag_for_each_word():
  task = make_task("tagging", ("NN", "VB"), "tagging_f1")
  with pytest.raises(
    ValueError, match="'NN' is not O and does not begin with B-"
  ):
    metrics.evaluate(task, [["NN"]], [{"tags": ["VB"]}])
  task = task._replace(labels=("O",))
  with pytest.raises(ValueError, match="example 1 has 2 labels and 1 pred"):
    metrics.evaluate(
      task, [["O"], ["O"]], [{"tags": ["O"]}, {"tags": ["O"] * 2}]
    )


def test_known_scores_of_multirc_and_record():
  task = make_task("classification", BINARY_LABELS, "multirc")
  groups, golds, predicted = "aaabbc", [*"110010"], [*"110000"]
  examples = [
    {"group": group, "label": gold}
    for group, gold in zip(groups, golds, strict=True)
  ]
  scores = metrics.evaluate(task, predicted, examples)
  assert scores["f1a"] == pytest.approx(0.8)
  assert scores["em"] == pytest.approx(2 / 3)
  assert scores["multirc"] == pytest.approx((0.8 + 2 / 3) / 2)

  task = make_task("classification", ("false", "true"), "record")
  candidates = [
    ("q", "Ann", "true"),
    ("q", "Bob", "false"),
    ("r", "The Eve", "true"),
  ]
  examples = [
    dict(group=group, answer=answer, answers=["Ann Lee", "eve"], label=label)
    for group, answer, label in candidates
  ]
  scores = metrics.evaluate(task, ["true", "false", "true"], examples)
  assert scores["em"] == 0.5
  assert scores["f1"] == pytest.approx((2 / 3 + 1) / 2)


def test_masked_accuracy_counts_pieces():
  task = make_task("choice", (), "masked_accuracy")
  golds, predicted = [[1, 2, 3], [4]], [[1, 0, 0], [4]]
  scores = metrics.evaluate(task, predicted, with_labels(golds))
  # The mean of the accuracies of the two texts would be 2/3.
  assert scores["masked_accuracy"] == 0.5


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
def test_f1_counts_shared_words(predicted, golds, expected):
  assert squad_metrics.f1(predicted, golds) == pytest.approx(expected, abs=1e-6)
  assert squad_metrics.f1(golds, predicted) == pytest.approx(expected, abs=1e-6)


def test_known_scores_of_answers_that_normalization_empties():
  # Normalization removes articles, so "the" becomes empty.
  assert squad_metrics.f1("the", "The", "1.1") == 0
  assert squad_metrics.best_scores("The cat", ["dog", "cat", "a cat sat"]) == (
    1,
    1,
  )
  assert squad_metrics.best_scores("", []) == (1, 1)
  assert squad_metrics.best_scores("cat", []) == (0, 0)
  assert squad_metrics.best_scores("the", ["the", "the cat"]) == (0, 0)
  assert squad_metrics.best_scores("the", ["the", "the cat"], "1.1") == (1, 0)


def expected_squad2(texts, golds, null_odds, threshold):
  """Returns SQuAD 2.0's scores, computed one question at a time."""
  scores = [
    squad_metrics.best_scores(text, gold_texts)
    for text, gold_texts in zip(texts, golds, strict=True)
  ]
  # The scores of an empty text, if the question has or has no answer.
  scores_of_empty = (0.0, 0.0), (1.0, 1.0)
  scores_by_prefix = collections.defaultdict(list)
  for score, gold_texts, question_odds in zip(
    scores, golds, null_odds, strict=True
  ):
    score = (
      scores_of_empty[not gold_texts] if question_odds > threshold else score
    )
    scores_by_prefix[""].append(score)
    scores_by_prefix["HasAns_" if gold_texts else "NoAns_"].append(score)
  results = {}
  for prefix, values in scores_by_prefix.items():
    exact_score, f1_score = 100 * np.mean(values, 0)
    results |= {f"{prefix}exact": exact_score, f"{prefix}f1": f1_score}
    results[f"{prefix}total"] = len(values)
  for column, name in enumerate(("exact", "f1")):
    best_score = 0.0
    for possible_threshold in [-math.inf, *null_odds]:
      scores_at_threshold = [
        (not gold_texts)
        if question_odds > possible_threshold
        else score[column]
        for score, gold_texts, question_odds in zip(
          scores, golds, null_odds, strict=True
        )
      ]
      best_score = max(best_score, 100 * np.mean(scores_at_threshold))
    results[f"best_{name}"] = best_score
  return results


def test_squad2_scores_of_each_part_and_best_threshold():
  rng = np.random.RandomState(4)
  words = ["red", "cat", "sat", "on", "mat"]
  texts, golds = [], []
  for i in range(150):
    # Every third question has no answer.
    text = " ".join(rng.choice(words, rng.randint(1, 4)))
    texts.append(text)
    golds.append([" ".join(rng.choice(words, 2)), text][i % 2 :] * (i % 3 > 0))
  null_odds = (
    rng.randn(150)
    - np.array([2 * (len(gold_texts) > 0) for gold_texts in golds])
  ).tolist()
  scores = squad_metrics.squad2(texts, golds, null_odds, -0.5)
  expected = expected_squad2(texts, golds, null_odds, threshold=-0.5)
  assert {name: scores[name] for name in expected} == pytest.approx(
    expected, abs=1e-9
  )
  for name in ("exact", "f1"):
    threshold = scores[f"best_{name}_thresh"]
    scores_at_threshold = squad_metrics.squad2(
      texts, golds, null_odds, threshold
    )
    assert scores_at_threshold[name] == pytest.approx(scores[f"best_{name}"])


def official_search(texts, golds, null_odds, column):
  """Returns what `find_best_thresh` of evaluate-v2.0.py returns."""
  scores = [
    squad_metrics.best_scores(text, gold_texts)[column]
    for text, gold_texts in zip(texts, golds, strict=True)
  ]
  current_score = best_score = sum(not gold_texts for gold_texts in golds)
  best_threshold = 0.0
  for i in sorted(range(len(texts)), key=lambda i: null_odds[i]):
    if golds[i]:
      current_score += scores[i]
    elif texts[i]:
      current_score -= 1
    if current_score > best_score:
      best_score, best_threshold = current_score, null_odds[i]
  return 100.0 * best_score / len(texts), best_threshold


# Each case has (texts, golds, null_odds, best, official, score_at_official).
# `null_odds` are log-odds that there is no answer. `best` and `official` are
# the (score, threshold) of our search and of the official search. The official
# search starts with threshold 0 and visits tied odds one by one, so it can
# return a score that its threshold does not reach; `score_at_official` is the
# score that it reaches.
THRESHOLD_CASES = [
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


@pytest.mark.parametrize(
  "texts, golds, null_odds, best, official, score_at_official", THRESHOLD_CASES
)
def test_the_best_threshold_gives_the_best_score(
  texts, golds, null_odds, best, official, score_at_official
):
  scores = squad_metrics.squad2(texts, golds, null_odds)
  for name in ("exact", "f1"):
    best_pair = scores[f"best_{name}"], scores[f"best_{name}_thresh"]
    assert best_pair == best
    assert (
      squad_metrics.squad2(texts, golds, null_odds, best[1])[name] == best[0]
    )
  scores = squad_metrics.squad2(texts, golds, null_odds, search="official")
  best_pair = scores["best_f1"], scores["best_f1_thresh"]
  assert (
    best_pair == official == official_search(texts, golds, null_odds, column=1)
  )
  assert (
    squad_metrics.squad2(texts, golds, null_odds, official[1])["f1"]
    == score_at_official
  )


@pytest.mark.parametrize("seed", range(20))
def test_best_thresholds_with_tied_odds(seed):
  rng = np.random.RandomState(seed)
  words = ["red", "cat", "sat"]
  texts = [" ".join(rng.choice(words, rng.randint(0, 3))) for _ in range(30)]
  golds = [[" ".join(rng.choice(words, 2))][: rng.randint(2)] for _ in texts]
  null_odds = rng.randint(-2, 3, 30).astype(float).tolist()
  scores = squad_metrics.squad2(texts, golds, null_odds)
  expected = expected_squad2(texts, golds, null_odds, threshold=1.0)
  official_scores = squad_metrics.squad2(
    texts, golds, null_odds, search="official"
  )
  for column, name in enumerate(("exact", "f1")):
    assert scores[f"best_{name}"] == pytest.approx(expected[f"best_{name}"])
    threshold = scores[f"best_{name}_thresh"]
    scores_at_threshold = squad_metrics.squad2(
      texts, golds, null_odds, threshold
    )
    assert scores_at_threshold[name] == pytest.approx(scores[f"best_{name}"])
    expected_score, threshold = official_search(
      texts, golds, null_odds, column=column
    )
    assert official_scores[f"best_{name}"] == pytest.approx(expected_score)
    assert official_scores[f"best_{name}_thresh"] == threshold
  with pytest.raises(
    ValueError, match="search 'x' is not one of reachable, off"
  ):
    squad_metrics.squad2(texts, golds, null_odds, search="x")


@pytest.mark.parametrize("seed", range(10))
def test_best_threshold_with_answers_that_normalization_empties(seed):
  """The best score is the largest one that any threshold gives."""
  rng = np.random.RandomState(seed)
  words = np.array(["the", ".", "", "cat", "a cat", "red cat"])
  texts = rng.choice(words, 12).tolist()
  golds = [[rng.choice(words[3:])][: rng.randint(2)] for _ in texts]
  null_odds = rng.choice([-1e300, -1.0, 0.0, 0.5, 3.0, 7.0], 12).tolist()
  all_scores = [
    squad_metrics.squad2(texts, golds, null_odds, threshold)
    for threshold in [-np.inf, *null_odds, np.inf]
  ]
  scores = squad_metrics.squad2(texts, golds, null_odds)
  for name in ("exact", "f1"):
    best_score = max(
      scores_at_threshold[name] for scores_at_threshold in all_scores
    )
    assert scores[f"best_{name}"] == pytest.approx(best_score)
    scores_at_best = squad_metrics.squad2(
      texts, golds, null_odds, scores[f"best_{name}_thresh"]
    )
    assert scores_at_best[name] == pytest.approx(best_score)
  official_scores = squad_metrics.squad2(
    texts, golds, null_odds, search="official"
  )
  for column, name in enumerate(("exact", "f1")):
    expected_score, threshold = official_search(
      texts, golds, null_odds, column=column
    )
    assert official_scores[f"best_{name}"] == pytest.approx(expected_score)
    assert official_scores[f"best_{name}_thresh"] == threshold


def test_an_answer_that_normalization_empties_counts_as_no_answer():
  texts = ["cat", "dog", "the", "a cat", "dog"]
  golds = [[], ["dog"], [], ["dog", "cat"], ["dog", "cat"]]
  null_odds = [-1, -1e300, 0.5, 0, 3]
  scores = squad_metrics.squad2(texts, golds, null_odds, threshold=0.0)
  assert scores["best_exact"] == scores["best_f1"] == 80
  assert (
    squad_metrics.squad2(texts, golds, null_odds, threshold=3)["exact"] == 80
  )
  official_scores = squad_metrics.squad2(
    texts, golds, null_odds, search="official"
  )
  assert official_scores["best_exact"] == 60


def test_squad_scores_leave_out_unlabelled_questions():
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
  scores = metrics.evaluate(
    make_task("span", (), "squad2"), predicted, examples
  )
  assert scores["examples"] == 2
  assert scores["squad2"] == scores["f1"] == 0
  assert scores["best_f1"] == 50
  assert scores["HasAns_total"] == scores["NoAns_total"] == 1
  scores = metrics.evaluate(
    make_task("span", (), "squad"), predicted[1:], examples[::2]
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
      metrics.evaluate(make_task(kind, ("O",), "f1"), ["O"], [{key: None}])
      == {}
    )
  examples = with_labels(["1", None, "0"])
  scores = metrics.evaluate(
    make_task("classification", BINARY_LABELS, "accuracy"),
    ["1", "1", "1"],
    examples,
  )
  assert scores == {"accuracy": 0.5, "examples": 2.0}


def test_wrong_predictions_and_metrics_are_refused():
  task = make_task("classification", BINARY_LABELS, "accuracy")
  with pytest.raises(ValueError, match="are 2 predictions for 1 examples"):
    metrics.evaluate(task, ["0", "1"], with_labels("0"))
  with pytest.raises(
    ValueError, match="no metric 'acuracy'; the metrics are acc"
  ):
    metrics.evaluate(
      task._replace(metrics=("acuracy",)), ["0"], with_labels("0")
    )
  task_of_three_classes = task._replace(labels=("a", "b", "c"), metrics=("f1",))
  with pytest.raises(ValueError, match="f1 needs two classes, and there are 3"):
    metrics.evaluate(task_of_three_classes, ["a"], with_labels("a"))


def test_a_missing_package_is_named(monkeypatch):
  def raise_import_error(name):
    raise ImportError(name)

  monkeypatch.setattr(metrics.importlib, "import_module", raise_import_error)
  task = make_task("tagging", ("O",), "tagging_f1")
  with pytest.raises(ValueError, match="pip install seqeval"):
    metrics.evaluate(task, [["O"]], [{"tags": ["O"]}])


def test_scores_can_be_written_as_json():
  scores = scores_of(
    BINARY_LABELS, ["accuracy_f1", "matthews"], ["0", "1"], ["0", "1"]
  )
  assert json.loads(json.dumps(scores)) == scores
  assert all(type(number) is float for number in scores.values())


@pytest.mark.parametrize(
  "kind, labels, metric, golds, predicted, expected",
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
      *("classification", BINARY_LABELS, "matthews", [*"010"], [*"111"]),
      ["all predictions of 3 examples are '1': matthews says little."],
    ),
    ("classification", BINARY_LABELS, "accuracy", [*"010"], [*"101"], []),
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
    ("classification", BINARY_LABELS, "accuracy", [None] * 3, [*"111"], []),
  ],
)
def test_warnings_about_scores_that_say_little(
  kind, labels, metric, golds, predicted, expected
):
  field = "tags" if kind == "tagging" else "label"
  examples = [{field: gold} for gold in golds]
  task = make_task(kind, labels, metric)
  assert metrics.score_warnings(task, predicted, examples) == expected
