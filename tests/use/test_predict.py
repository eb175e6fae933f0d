"""Tests that each input gets one prediction, for all kinds of tasks."""

import functools
import json
import os
import pathlib
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import tiny_families
import tiny_tasks

from bert_jax.models import bert, heads
from bert_jax.tasks import windows as long_texts
from bert_jax.tasks.files import requests
from bert_jax.use import predict as predicting
from bert_jax.weights.load import open_model

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")

ROOT = str(pathlib.Path(__file__).parents[2])


@pytest.fixture(scope="module")
def model_paths(tmp_path_factory):
  """Returns {kind of task: the path of a tiny model}."""
  path = tmp_path_factory.mktemp("models")
  for kind in tiny_tasks.TASKS:
    tiny_tasks.write_fine_tuned(path / kind, kind)
  tiny_tasks.write_model(path / "fill")
  return {kind: str(path / kind) for kind in (*tiny_tasks.TASKS, "fill")}


def predict(path, lines, **options):
  predictor = predicting.open_predictor(path, **options)
  json_lines = [json.dumps(line) for line in lines]
  examples = list(requests.read(json_lines, predictor.kind, "in"))
  return predictor, predicting.predict(predictor, examples)


def are_close(a, b):
  """Returns True if two trees are equal up to the rounding of floats."""
  if isinstance(a, dict):
    return a.keys() == b.keys() and all(are_close(a[key], b[key]) for key in a)
  if isinstance(a, list):
    return len(a) == len(b) and all(map(are_close, a, b))
  if isinstance(a, float):
    return abs(a - b) < 1e-5
  return a == b


@functools.cache
def logits_function(path):
  """Returns a function that calls the module; it maps a batch to logits."""
  model = open_model(path)
  return functools.partial(
    tiny_families.fast_jit(model.module.apply), {"params": model.params}
  )


def text_logits(path, text):
  """Returns the logits that the module gives for one text."""
  ids = tiny_tasks.vocabulary().encode_batch([text])[0]
  row = np.zeros((1, 12), np.int32)
  row[0, : len(ids) + 2] = [2, *ids, 3]  # 2 is [CLS], 3 is [SEP].
  batch = {"input_ids": row, "sequence_ids": (row > 0).astype(np.int32)}
  return np.asarray(logits_function(path)(batch)[0])


def test_classes_of_texts_do_not_depend_on_the_batch_size(model_paths):
  texts = tiny_tasks.random_sentences(11)
  lines = [{"text": text, "id": f"n{i}"} for i, text in enumerate(texts)]
  _, predictions = predict(model_paths["classification"], lines, batch_size=4)
  assert len(predictions) == 11
  for text, prediction in list(zip(texts, predictions, strict=True))[:2]:
    logits = text_logits(model_paths["classification"], text)
    assert prediction["label"] == ("cat", "dog")[logits.argmax()]
    np.testing.assert_allclose(
      [*prediction["probabilities"].values()],
      predicting.softmax(logits),
      atol=1e-6,
    )
  _, predictions_by_three = predict(
    model_paths["classification"], lines, batch_size=3
  )
  assert are_close(predictions, predictions_by_three)
  # A second text changes the prediction.
  _, (text_prediction, pair_prediction) = predict(
    model_paths["classification"],
    [lines[0], lines[0] | {"text_pair": "dog runs"}],
    batch_size=3,
  )
  assert are_close(text_prediction, predictions[0]) and not are_close(
    pair_prediction, predictions[0]
  )


def test_several_labels_are_predicted_at_once(tmp_path):
  labels = ["x", "y", "z"]
  head = dict(num_labels=3, pooling=heads.Pooling(*bert.POOLING)._asdict())
  tiny_tasks.write_model(
    tmp_path / "m",
    "sequence_classification",
    head=head,
    labels=labels,
    problem="multi_label",
  )
  path, texts = str(tmp_path / "m"), tiny_tasks.random_sentences(3)
  _, predictions = predict(path, [{"text": text} for text in texts])
  for text, prediction in zip(texts, predictions, strict=True):
    probabilities = 1 / (1 + np.exp(-text_logits(path, text)))
    assert list(prediction["probabilities"]) == labels
    np.testing.assert_allclose(
      [*prediction["probabilities"].values()], probabilities, atol=1e-6
    )
    likely_labels = [
      label
      for label, probability in zip(labels, probabilities, strict=True)
      if probability > 0.5
    ]
    assert prediction["labels"] == likely_labels


def test_a_long_text_is_the_mean_of_its_windows(model_paths):
  text = " ".join(tiny_tasks.random_sentences(12))
  path = model_paths["regression"]
  predictor, (prediction,) = predict(path, [{"text": text}], max_length=12)
  rows = long_texts.encode_in_windows([[text]], predictor.vocabulary, length=12)
  assert len(rows.example_indices) > 3 and np.diff(rows.starts).max() == 12
  logits = predicting.compute_outputs(predictor, rows, positions=None)
  np.testing.assert_allclose(prediction["score"], np.mean(logits), rtol=1e-6)


@pytest.mark.parametrize("sizes", [(3, 40), (40, 3), (30, 40), (25,), (4, 4)])
def test_windows_leave_no_token_out(sizes):
  texts = [
    np.arange(size, dtype=np.int32) + 100 * i for i, size in enumerate(sizes)
  ]
  windows = long_texts.cut_into_windows(texts, capacity=12)
  assert all(sum(map(len, window)) <= 12 for window in windows)
  for i, text in enumerate(texts):
    window_tokens = {int(token) for window in windows for token in window[i]}
    assert window_tokens == set(text.tolist())
  if sum(sizes) <= 12:
    assert len(windows) == 1


def test_any_number_of_choices_is_predicted(model_paths):
  lines = [
    {"text": "red cat", "choices": ["runs", "sings"]},
    {"choices": ["blue bird", "dog sleeps", "green"]},
  ]
  _, predictions = predict(model_paths["choice"], lines)
  assert [len(prediction["probabilities"]) for prediction in predictions] == [
    2,
    3,
  ]
  scores = [
    text_logits(model_paths["choice"], text)[0] for text in lines[1]["choices"]
  ]
  probabilities = predicting.softmax(np.array(scores))
  np.testing.assert_allclose(
    predictions[1]["probabilities"], probabilities, atol=1e-6
  )
  # If the choices are reversed, the same choice is predicted.
  reversed_choices = lines[1] | {"choices": lines[1]["choices"][::-1]}
  _, (prediction,) = predict(model_paths["choice"], [reversed_choices])
  assert prediction["choice"] == 2 - predictions[1]["choice"]


def test_each_word_of_a_long_text_has_one_tag(model_paths):
  words = " ".join(tiny_tasks.random_sentences(10)).split()
  lines = [{"words": words}, {"text": "red \u0007 cat"}]
  _, (long_prediction, short_prediction) = predict(
    model_paths["tagging"], lines, max_length=12
  )
  assert long_prediction["words"] == words and len(
    long_prediction["tags"]
  ) == len(words)
  assert set(long_prediction["tags"]) <= {"O", "B-X", "I-X"}
  assert all(
    0 < probability <= 1 for probability in long_prediction["probabilities"]
  )
  # The word without pieces has the tag O, with probability 1.
  assert len(short_prediction["tags"]) == len(short_prediction["words"]) == 3
  assert (
    short_prediction["tags"][1] == "O"
    and short_prediction["probabilities"][1] == 1.0
  )


def test_answers_are_slices_of_the_context(model_paths):
  context = "  " + "  ".join(tiny_tasks.random_sentences(9))
  lines = [{"question": "cat ?", "context": context}]
  _, (prediction,) = predict(model_paths["span"], lines, max_length=24)
  assert prediction["answer"] in context and "null_odds" not in prediction
  assert all(candidate["text"] in context for candidate in prediction["nbest"])
  _, (prediction,) = predict(
    model_paths["span"], lines, max_length=24, no_answer=True
  )
  assert isinstance(prediction["null_odds"], float)


def test_windows_of_a_context_overlap_by_half(model_paths):
  line = {"question": "cat", "context": "red dog " * 40, "answers": None}
  predictor = predicting.open_predictor(model_paths["span"], max_length=24)
  rows, _ = predicting.encode_examples(predictor, [line])
  context_positions = [
    np.flatnonzero(rows.offsets[begin:end, 0] >= 0) + begin
    for begin, end in zip(rows.starts[:-1], rows.starts[1:], strict=True)
  ]
  # A word and its space have 4 characters.
  first_words = [
    int(rows.offsets[positions[0], 0]) // 4 for positions in context_positions
  ]
  # The context has 20 of the 24 tokens.
  assert len(context_positions[0]) == 20 and set(np.diff(first_words)) == {10}


@pytest.mark.parametrize("null_odds", [-1.5, 0.7, 80.0])
def test_null_odds_set_the_probability_of_no_answer(model_paths, null_odds):
  """Makes an answer from ELECTRA's head, which gives the odds of no answer.

  The probabilities of the spans must assume that there is an answer, and the
  probability of the result must include the odds.
  """
  predictor = predicting.open_predictor(
    model_paths["span"], max_length=24, no_answer=True
  )
  questions = [{"id": 1, "question": "cat ?", "context": "red cat runs"}]
  questions[0]["answers"] = None
  rows, _ = predicting.encode_examples(predictor, questions)
  (first_position,) = np.flatnonzero(rows.offsets[:, 0] == 0)
  word_positions = first_position + np.arange(3)
  # An entry of the beam has a start, an end, and their log probabilities. The
  # first entry has the odds of no answer.
  spans = [[i, i, -1.0 - rank, -0.5] for rank, i in enumerate(word_positions)]
  beam = np.array([[0, 0, null_odds, 0], *spans])
  (answer,) = predicting.make_results(predictor, rows, [beam], questions)
  nbest = {
    candidate["text"]: candidate["probability"] for candidate in answer["nbest"]
  }
  assert list(nbest) == ["red", "cat", "runs"]
  np.testing.assert_allclose(sum(nbest.values()), 1.0)
  no_answer_probability = 1 / (1 + np.exp(-null_odds))
  if null_odds > 0:
    assert answer["answer"] == "" and answer["probability"] > 0.5
    np.testing.assert_allclose(answer["probability"], no_answer_probability)
  else:
    assert answer["answer"] == "red"
    np.testing.assert_allclose(
      answer["probability"],
      (1 - no_answer_probability) * nbest["red"],
      rtol=1e-12,
    )
  # If no span is legal, "no answer" is the only prediction.
  (answer,) = predicting.make_results(predictor, rows, [beam[:1]], questions)
  assert (answer["answer"], answer["probability"]) == ("", 1.0)


def test_masks_are_filled_in_texts_of_any_length(model_paths):
  texts = ["red [MASK] runs .", "cat", "[MASK] dog [MASK]"]
  texts.append(" ".join(["blue"] * 30 + ["[MASK]"] + ["bird"] * 30))
  _, predictions = predict(
    model_paths["fill"],
    [{"text": text} for text in texts],
    top_k=3,
    max_length=16,
  )
  assert [len(prediction["masks"]) for prediction in predictions] == [
    1,
    0,
    2,
    1,
  ]
  candidates = predictions[0]["masks"][0]
  assert len(candidates) == 3
  assert candidates[0]["probability"] >= candidates[1]["probability"]
  ids = tiny_tasks.vocabulary().encode_special(texts[0])
  batch = {
    "input_ids": jnp.array([[2, *ids, 3]]),  # 2 is [CLS], 3 is [SEP].
    "mlm_positions": jnp.array([[2]]),
    "cls_positions": jnp.array([[0]]),
  }
  logits = logits_function(model_paths["fill"])(batch)["mlm_logits"]
  probabilities = predicting.softmax(np.asarray(logits)[0, 0])
  assert candidates[0]["token"] == tiny_tasks.PIECES[probabilities.argmax()]
  np.testing.assert_allclose(
    candidates[0]["probability"], probabilities.max(), rtol=1e-5
  )


@pytest.mark.parametrize(
  ("kind", "line", "message"),
  [
    ("classification", "{", "in:2: it is not JSON"),
    ("classification", "", "in:2: it is empty"),
    ("classification", "[1]", "in:2: it is not an object"),
    (
      "classification",
      '{"txt": "a"}',
      "in:2: it has no field 'text'; its fields are txt",
    ),
    ("regression", '{"text": 3}', "in:2: text is 3, not text"),
    ("choice", '{"text": "a"}', "in:2: it has no field 'choices'"),
    (
      "choice",
      '{"choices": []}',
      "in:2: choices is not a list of texts, or is em",
    ),
    ("tagging", '{"words": ["a", 1]}', r"in:2: words\[1\] is 1, not text"),
    ("span", '{"question": "a"}', "in:2: it has no field 'context'"),
  ],
)
def test_errors_name_the_line(kind, line, message):
  good_fields = {
    "classification": {"text": "a"},
    "regression": {"text": "a"},
    "choice": {"choices": ["a"]},
    "tagging": {"words": ["a"]},
    "span": {"question": "a", "context": "b"},
  }[kind]
  with pytest.raises(ValueError, match=message):
    list(requests.read([json.dumps(good_fields), line], kind, "in"))


def run_predict(*flags, devices=1):
  environment = os.environ | {
    "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": ROOT,
  }
  return subprocess.run(
    [sys.executable, "-m", "bert_jax", "predict", *flags],
    capture_output=True,
    text=True,
    env=environment,
    check=False,
  )


def test_four_devices_predict_as_one_device(model_paths, tmp_path):
  texts = tiny_tasks.random_sentences(7, seed=3)
  lines = [{"text": text, "id": f"n{i}"} for i, text in enumerate(texts)]
  source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
  source.write_text("".join(json.dumps(line) + "\n" for line in lines))
  flags = [f"--model={model_paths['classification']}", "--batch-size=3"]
  flags += [f"--input={source}", f"--output={target}"]
  process = run_predict(*flags, devices=4)
  assert process.returncode == 0, process.stderr
  assert process.stdout == f"{target}: 7 predictions.\n"
  printed_predictions = [
    json.loads(line) for line in target.read_text().splitlines()
  ]
  assert [prediction.pop("id") for prediction in printed_predictions] == [
    f"n{i}" for i in range(7)
  ]
  _, predictions = predict(model_paths["classification"], lines)
  assert are_close(printed_predictions, predictions)


def test_a_model_without_a_head_is_refused(model_paths, tmp_path):
  tiny_tasks.write_model(tmp_path / "bare", "encoder", head={})
  with pytest.raises(ValueError, match="no head to predict with"):
    predicting.open_predictor(str(tmp_path / "bare"))
  with pytest.raises(ValueError, match="is not the folder of a run"):
    predicting.open_predictor(model_paths["fill"], best=True)
