"""Predictions: as many as inputs, in order, for any batches and windows."""

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

import bert_jax
from bert_jax.models import bert, heads
from bert_jax.tasks import windows as long_texts
from bert_jax.tasks.files import requests
from bert_jax.use import predict as predicting

pytestmark = pytest.mark.usefixtures("compiled", "unoptimized")

ROOT = str(pathlib.Path(__file__).parents[2])


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  """Kind of model -> path of a tiny one."""
  path = tmp_path_factory.mktemp("models")
  for kind in tiny_tasks.TASKS:
    tiny_tasks.write_tuned(path / kind, kind)
  tiny_tasks.write_model(path / "fill")
  return {kind: str(path / kind) for kind in (*tiny_tasks.TASKS, "fill")}


def predict(path, lines, **options):
  predictor = predicting.open_predictor(path, **options)
  text = [json.dumps(line) for line in lines]
  examples = list(requests.read(text, predictor.kind, "in"))
  return predictor, predicting.predict(predictor, examples)


def close(a, b):
  """Equal, numbers to rounding."""
  if isinstance(a, dict):
    return a.keys() == b.keys() and all(close(a[k], b[k]) for k in a)
  if isinstance(a, list):
    return len(a) == len(b) and all(map(close, a, b))
  if isinstance(a, float):
    return abs(a - b) < 1e-5
  return a == b


@functools.cache
def module(path):
  """The model itself, of rows of 12: batch -> logits."""
  model = bert_jax.load(path)
  return functools.partial(
    tiny_families.jit(model.module.apply), {"params": model.params}
  )


def alone(path, text):
  """Logits of one text, by the module itself."""
  ids = tiny_tasks.vocabulary().encode_batch([text])[0]
  row = np.zeros((1, 12), np.int32)
  row[0, : len(ids) + 2] = [2, *ids, 3]
  batch = {"input_ids": row, "sequence_ids": (row > 0).astype(np.int32)}
  return np.asarray(module(path)(batch)[0])


def test_classes_in_order_for_any_batch(models):
  texts = tiny_tasks.sentences(11)
  lines = [{"text": text, "id": f"n{i}"} for i, text in enumerate(texts)]
  _, found = predict(models["classification"], lines, batch_size=4)
  assert len(found) == 11
  for text, result in list(zip(texts, found, strict=True))[:2]:
    logits = alone(models["classification"], text)
    wanted = predicting.softmax(logits)
    assert result["label"] == ("cat", "dog")[logits.argmax()]
    np.testing.assert_allclose(
      [*result["probabilities"].values()], wanted, atol=1e-6
    )
  _, again = predict(models["classification"], lines, batch_size=3)
  assert close(found, again)
  # One input gives one prediction, and pairs are another text.
  _, one = predict(
    models["classification"],
    [lines[0], lines[0] | {"text_pair": "dog runs"}],
    batch_size=3,
  )
  assert close(one[0], found[0]) and not close(one[1], found[0])


def test_several_labels_at_once(tmp_path):
  named = ["x", "y", "z"]
  head = dict(num_labels=3, pooling=heads.Pooling(*bert.POOLING)._asdict())
  tiny_tasks.write_model(
    tmp_path / "m",
    "sequence_classification",
    head=head,
    labels=named,
    problem="multi_label",
  )
  path, texts = str(tmp_path / "m"), tiny_tasks.sentences(3)
  _, found = predict(path, [{"text": text} for text in texts])
  for text, result in zip(texts, found, strict=True):
    chances = 1 / (1 + np.exp(-alone(path, text)))
    assert list(result["probabilities"]) == named
    np.testing.assert_allclose(
      [*result["probabilities"].values()], chances, atol=1e-6
    )
    wanted = [n for n, p in zip(named, chances, strict=True) if p > 0.5]
    assert result["labels"] == wanted


def test_a_long_text_is_the_mean_of_its_windows(models):
  words = " ".join(tiny_tasks.sentences(12))
  predictor, found = predict(models["regression"], [{"text": words}], length=12)
  rows = long_texts.rows([[words]], predictor.vocabulary, 12)
  assert len(rows.example) > 3 and np.diff(rows.starts).max() == 12
  logits = predicting.run(predictor, rows, None)
  np.testing.assert_allclose(found[0]["score"], np.mean(logits), rtol=1e-6)


@pytest.mark.parametrize("sizes", [(3, 40), (40, 3), (30, 40), (25,), (4, 4)])
def test_windows_leave_no_token_and_no_pair_out(sizes):
  texts = [np.arange(n, dtype=np.int32) + 100 * i for i, n in enumerate(sizes)]
  windows = long_texts.parts(texts, 12)
  assert all(sum(map(len, w)) <= 12 for w in windows)
  for i, text in enumerate(texts):
    seen = {int(t) for window in windows for t in window[i]}
    assert seen == set(text.tolist())
  if sum(sizes) <= 12:
    assert len(windows) == 1


def test_choices_of_any_number(models):
  lines = [
    {"text": "red cat", "choices": ["runs", "sings"]},
    {"choices": ["blue bird", "dog sleeps", "green"]},
  ]
  _, found = predict(models["choice"], lines)
  assert [len(r["probabilities"]) for r in found] == [2, 3]
  scores = [alone(models["choice"], text)[0] for text in lines[1]["choices"]]
  np.testing.assert_allclose(
    found[1]["probabilities"], predicting.softmax(np.array(scores)), atol=1e-6
  )
  # Another order of the choices is the same choice.
  turned = [lines[1] | {"choices": lines[1]["choices"][::-1]}]
  _, other = predict(models["choice"], turned)
  assert other[0]["choice"] == 2 - found[1]["choice"]


def test_one_tag_a_word_in_texts_of_any_length(models):
  words = " ".join(tiny_tasks.sentences(10)).split()
  lines = [{"words": words}, {"text": "red \u0007 cat"}]
  _, found = predict(models["tagging"], lines, length=12)
  assert found[0]["words"] == words and len(found[0]["tags"]) == len(words)
  assert set(found[0]["tags"]) <= {"O", "B-X", "I-X"}
  assert all(0 < p <= 1 for p in found[0]["probabilities"])
  # A word without a piece is there too.
  assert len(found[1]["tags"]) == len(found[1]["words"]) == 3
  assert found[1]["tags"][1] == "O" and found[1]["probabilities"][1] == 1.0


def test_answers_are_slices_of_the_context(models):
  context = "  " + "  ".join(tiny_tasks.sentences(9))
  lines = [{"question": "cat ?", "context": context}]
  _, found = predict(models["span"], lines, length=24)
  assert found[0]["answer"] in context and "null_odds" not in found[0]
  assert all(x["text"] in context for x in found[0]["nbest"])
  _, found = predict(models["span"], lines, length=24, null=True)
  assert isinstance(found[0]["null_odds"], float)


def test_windows_of_a_context_overlap_by_half(models):
  line = {"question": "cat", "context": "red dog " * 40, "answers": None}
  predictor = predicting.open_predictor(models["span"], length=24)
  rows, _ = predicting.encode(predictor, [line])
  inner = [
    np.flatnonzero(rows.offsets[a:b, 0] >= 0) + a
    for a, b in zip(rows.starts[:-1], rows.starts[1:], strict=True)
  ]
  begins = [int(rows.offsets[own[0], 0]) // 4 for own in inner]
  # Of 24 places 20 are the context's.
  assert len(inner[0]) == 20 and set(np.diff(begins)) == {10}


@pytest.mark.parametrize("odds", [-1.5, 0.7, 80.0])
def test_no_answer_of_a_beam_has_its_own_chance(models, odds):
  """ELECTRA's head: a list given that there is an answer, and whether."""
  predictor = predicting.open_predictor(models["span"], length=24, null=True)
  asked = [{"id": 1, "question": "cat ?", "context": "red cat runs"}]
  asked[0]["answers"] = None
  rows, _ = predicting.encode(predictor, asked)
  (first,) = np.flatnonzero(rows.offsets[:, 0] == 0)
  begins = first + np.arange(3)
  spans = [[i, i, -1.0 - k, -0.5] for k, i in enumerate(begins)]
  beam = np.array([[0, 0, odds, 0], *spans])
  (found,) = predicting.make_results(predictor, rows, [beam], asked)
  given = {x["text"]: x["probability"] for x in found["nbest"]}
  assert list(given) == ["red", "cat", "runs"]
  np.testing.assert_allclose(sum(given.values()), 1.0)
  none = 1 / (1 + np.exp(-odds))
  if odds > 0:
    assert found["answer"] == "" and found["probability"] > 0.5
    np.testing.assert_allclose(found["probability"], none)
  else:
    assert found["answer"] == "red"
    np.testing.assert_allclose(
      found["probability"], (1 - none) * given["red"], rtol=1e-12
    )
  # Without a legal span nothing else can be said.
  (found,) = predicting.make_results(predictor, rows, [beam[:1]], asked)
  assert (found["answer"], found["probability"]) == ("", 1.0)


def test_masks_are_filled_in_texts_of_any_length(models):
  texts = ["red [MASK] runs .", "cat", "[MASK] dog [MASK]"]
  texts.append(" ".join(["blue"] * 30 + ["[MASK]"] + ["bird"] * 30))
  _, found = predict(
    models["fill"], [{"text": t} for t in texts], top=3, length=16
  )
  assert [len(r["masks"]) for r in found] == [1, 0, 2, 1]
  best = found[0]["masks"][0]
  assert len(best) == 3
  assert best[0]["probability"] >= best[1]["probability"]
  ids = tiny_tasks.vocabulary().encode_special(texts[0])
  batch = {
    "input_ids": jnp.array([[2, *ids, 3]]),
    "mlm_positions": jnp.array([[2]]),
    "cls_positions": jnp.array([[0]]),
  }
  logits = module(models["fill"])(batch)["mlm_logits"]
  wanted = predicting.softmax(np.asarray(logits)[0, 0])
  assert best[0]["token"] == tiny_tasks.PIECES[wanted.argmax()]
  np.testing.assert_allclose(best[0]["probability"], wanted.max(), rtol=1e-5)


@pytest.mark.parametrize(
  ("kind", "line", "message"),
  [
    ("classification", "{", "in:2: no JSON"),
    ("classification", "", "in:2: it is empty"),
    ("classification", "[1]", "in:2: no object"),
    ("classification", '{"txt": "a"}', "in:2: no field 'text'; it has txt"),
    ("regression", '{"text": 3}', "in:2: text is 3, not text"),
    ("choice", '{"text": "a"}', "in:2: no field 'choices'"),
    ("choice", '{"choices": []}', "in:2: choices is no list, or an empty"),
    ("tagging", '{"words": ["a", 1]}', r"in:2: words\[1\] is 1, not text"),
    ("span", '{"question": "a"}', "in:2: no field 'context'"),
  ],
)
def test_errors_name_the_line(kind, line, message):
  good = {
    "classification": {"text": "a"},
    "regression": {"text": "a"},
    "choice": {"choices": ["a"]},
    "tagging": {"words": ["a"]},
    "span": {"question": "a", "context": "b"},
  }[kind]
  with pytest.raises(ValueError, match=message):
    list(requests.read([json.dumps(good), line], kind, "in"))


def command(*flags, devices=1):
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


def test_the_command_on_several_devices(models, tmp_path):
  texts = tiny_tasks.sentences(7, seed=3)
  lines = [{"text": t, "id": f"n{i}"} for i, t in enumerate(texts)]
  source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
  source.write_text("".join(json.dumps(line) + "\n" for line in lines))
  flags = [f"--model={models['classification']}", "--batch-size=3"]
  flags += [f"--input={source}", f"--output={target}"]
  done = command(*flags, devices=4)
  assert done.returncode == 0, done.stderr
  assert done.stdout == f"{target}: 7 predictions.\n"
  rows = [json.loads(line) for line in target.read_text().splitlines()]
  assert [row.pop("id") for row in rows] == [f"n{i}" for i in range(7)]
  _, found = predict(models["classification"], lines)
  assert close(rows, found)


def test_a_model_without_a_head_is_refused(models, tmp_path):
  tiny_tasks.write_model(tmp_path / "bare", "encoder", head={})
  with pytest.raises(ValueError, match="no head to predict with"):
    predicting.open_predictor(str(tmp_path / "bare"))
  with pytest.raises(ValueError, match="is not the --workdir of a run"):
    predicting.open_predictor(models["fill"], best=True)
