"""Compares ELECTRA's head for questions with numpy, and tests its runs."""

import copy
import functools
import json
import math
import os
import pathlib
import shutil

import finetune_files as files
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_families
import tiny_tasks

from bert_jax.cli import configs
from bert_jax.models import question_head, task_heads
from bert_jax.objectives import finetune
from bert_jax.objectives.finetune import joint_head_sums
from bert_jax.tasks import (
  batches,
  encoded_rows,
  metrics,
  predictions,
  prepare_task,
  task_inputs,
)
from bert_jax.tasks import questions as questions_lib
from bert_jax.tasks.encoded_rows import Task
from bert_jax.text import open_vocabulary
from bert_jax.training import logging, train
from bert_jax.use import export, predict
from bert_jax.weights import hf, runs
from bert_jax.weights import load as loading

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")

ROOT = str(pathlib.Path(__file__).parents[2])
DATA_FOLDER = os.environ.get("BERT_JAX_TEST_DATA")
TASK = Task("answers", "span", (), num_choices=1, metrics=("squad2",))


def gelu(x):
  return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def log_softmax(x):
  x = x - x.max(-1, keepdims=True)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


class NumpyHead:
  """Computes the head for one row, in float64, as ELECTRA's program does."""

  def __init__(self, params, hidden, mask):
    self._params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    self._hidden = np.asarray(hidden, np.float64)
    self._mask_penalty = 1000.0 * (np.asarray(mask, np.float64) - 1)
    self.start = self._dense("start", self._hidden)[:, 0] + self._mask_penalty

  def _dense(self, name, x):
    return x @ self._params[name]["kernel"] + self._params[name]["bias"]

  def end(self, start):
    """Returns the logits of the ends for a given start."""
    start_states = np.tile(self._hidden[start], (len(self._hidden), 1))
    x = gelu(
      self._dense("end_hidden", np.concatenate([start_states, self._hidden], 1))
    )
    return self._dense("end", x)[:, 0] + self._mask_penalty

  def null(self):
    """Returns the logit of no answer."""
    mean = np.exp(log_softmax(self.start)) @ self._hidden
    x = np.concatenate([self._hidden[0], mean])
    return self._dense("null", gelu(self._dense("null_hidden", x)))[0]


def make_head(beam, length, seed=0):
  """Returns (head, parameters, states, masks, a `NumpyHead` for each row)."""
  module = question_head.JointAnswerHead(beam, jnp.dtype("float32"))
  rng = np.random.default_rng(seed)
  hidden = rng.normal(size=(3, length, 8)).astype(np.float32)
  positions = np.arange(length)
  mask = (positions >= 3) & (positions < np.array([[length], [7], [5]]))
  mask[:, 0] = True
  params = tiny_families.random_params(module, hidden, mask)
  numpy_heads = [
    NumpyHead(params, *row) for row in zip(hidden, mask, strict=True)
  ]
  return module, params, hidden, mask, numpy_heads


def test_the_loss_agrees_with_the_released_program():
  module, params, hidden, mask, numpy_heads = make_head(beam=4, length=9)
  labels = np.array([[4, 6], [0, 0], [3, 3]], np.int32)
  logits_of = functools.partial(
    module.apply, {"params": params}, method="logits_given_starts"
  )
  logits = tiny_families.fast_jit(logits_of)(hidden, mask, labels[:, 0])
  losses, is_right = [], []
  unanswerable = np.array([0.0, 1.0, 0.0], np.float32)
  for numpy_head, (start, end), is_unanswerable in zip(
    numpy_heads, labels, unanswerable, strict=True
  ):
    loss = (
      -log_softmax(numpy_head.start)[start]
      - log_softmax(numpy_head.end(start))[end]
    )
    null_probability = 1 / (1 + np.exp(-numpy_head.null()))
    loss = loss / 2 - 0.5 * np.log(
      null_probability if is_unanswerable else 1 - null_probability
    )
    losses.append(loss)
    span = numpy_head.start.argmax(), numpy_head.end(start).argmax()
    is_right.append(span == (start, end))
  np.testing.assert_allclose(
    logits.start_logits,
    [numpy_head_of_row.start for numpy_head_of_row in numpy_heads],
    rtol=1e-5,
  )
  for weights in ([1.0, 1.0, 1.0], [1.0, 0.5, 0.0]):
    weights = np.array(weights, np.float32)
    batch = dict(
      labels=labels, label_weights=weights, unanswerable=unanswerable
    )
    sums = joint_head_sums(logits, batch)
    np.testing.assert_allclose(sums["task_loss"], weights @ losses, rtol=1e-5)
    np.testing.assert_allclose(sums["task_accuracy"], weights @ is_right)
  # If the labels are the best spans, all predictions are right.
  best_spans = [
    (
      numpy_head_of_row.start.argmax(),
      numpy_head_of_row.end(numpy_head_of_row.start.argmax()).argmax(),
    )
    for numpy_head_of_row in numpy_heads
  ]
  best_spans = np.array(best_spans, np.int32)
  logits = logits_of(hidden, mask, best_spans[:, 0])
  batch = dict(
    labels=best_spans, label_weights=np.ones(3), unanswerable=unanswerable
  )
  assert joint_head_sums(logits, batch)["task_accuracy"] == 3.0


@pytest.mark.parametrize("beam", [3, 20])
def test_a_beam_has_the_best_ends_of_the_best_starts(beam):
  module, params, hidden, mask, numpy_heads = make_head(beam=beam, length=9)
  beams = np.asarray(
    tiny_families.fast_jit(module.apply)({"params": params}, hidden, mask)
  )
  beam_size = min(beam, 9)
  assert (
    beams.shape == (3, 1 + beam_size * beam_size, 4)
    and beams.dtype == np.float32
  )
  for numpy_head, beam_entries in zip(numpy_heads, beams, strict=True):
    np.testing.assert_allclose(
      beam_entries[0], [0, 0, numpy_head.null(), 0], rtol=1e-5
    )
    start_log_probabilities = log_softmax(numpy_head.start)
    expected_entries = []
    for start in np.argsort(-start_log_probabilities, kind="stable")[
      :beam_size
    ]:
      end_log_probabilities = log_softmax(numpy_head.end(start))
      for end in np.argsort(-end_log_probabilities, kind="stable")[:beam_size]:
        expected_entries.append(
          [
            start,
            end,
            start_log_probabilities[start],
            end_log_probabilities[end],
          ]
        )
    np.testing.assert_allclose(
      beam_entries[1:], expected_entries, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", tiny_families.FAMILY_NAMES)
def test_every_family_answers_from_the_context(name):
  encoder = tiny_families.build_encoder(name)
  module = task_heads.build("span", encoder, {"dropout": 0.0, "beam": 2})
  ids = tiny_families.token_ids(2, 8)
  is_real = np.arange(8) < np.array([[8], [6]])
  context = (is_real & (np.arange(8) >= 3)).astype(np.int32)
  batch = dict(input_ids=np.where(is_real, ids, 1).astype(np.int32))
  batch |= dict(sequence_ids=is_real.astype(np.int32), segment_ids=context)
  params = tiny_families.random_params(module, batch)
  run = tiny_families.fast_jit(module.apply)
  beams = np.asarray(run({"params": params}, batch))
  # Only an encoder with segment embeddings reads the segment ids.
  segment_ids = context if getattr(encoder, "num_segments", 0) > 1 else None
  hidden, _ = tiny_families.fast_jit(encoder.apply)(
    {"params": params["encoder"]},
    batch["input_ids"],
    segment_ids,
    is_real.astype("int32"),
  )
  for beam_entries, states, mask in zip(
    beams, hidden, context > 0, strict=True
  ):
    mask[0] = True
    numpy_head = NumpyHead(params["answers"], states, mask)
    np.testing.assert_allclose(beam_entries[0, 2], numpy_head.null(), rtol=1e-4)
    best_start = numpy_head.start.argmax()
    assert beam_entries[1, :2].tolist() == [
      best_start,
      numpy_head.end(best_start).argmax(),
    ]
    assert all(mask[int(x)] for x in beam_entries[:, :2].ravel())
  del batch["segment_ids"]
  with pytest.raises(ValueError, match="needs segment_ids, which are 1 in"):
    module.apply({"params": params}, batch)


def make_questions(has_long_contexts=True):
  """Returns 12 questions, of which 4 have no answer.

  With `has_long_contexts`, some contexts need more than one window.
  """
  rng = np.random.default_rng(0)
  examples = []
  for question_number in range(12):
    animals = rng.permutation(["cat", "dog", "bird"])
    verbs = rng.permutation(["runs", "sleeps", "sings"])
    sentences = [
      f"{animal} {verb} ." for animal, verb in zip(animals, verbs, strict=True)
    ]
    is_unanswerable, asked_animal = (
      question_number % 3 == 0,
      animals[question_number % 2],
    )
    if is_unanswerable:
      sentences = [
        text for text in sentences if not text.startswith(asked_animal)
      ]
    elif has_long_contexts and question_number % 4 == 1:
      sentences += ["red green blue ."] * 4
    context = "  ".join(sentences)
    verb = verbs[question_number % 2]
    answers = [dict(text=verb, answer_start=context.find(verb))]
    fields = dict(
      id=f"q{question_number}", title="", question=f"{asked_animal} ?"
    )
    examples.append(
      fields | dict(context=context, answers=[] if is_unanswerable else answers)
    )
  return examples


def encode_rows(vocabulary, length=20):
  return questions_lib.encode_questions(
    make_questions(), vocabulary, length, stride=6
  ).rows


@pytest.mark.parametrize("may_lack_answer", [False, True])
def test_a_beam_of_independent_ends_answers_as_bert_does(may_lack_answer):
  """Starts and ends are scored independently, as in BERT.

  A beam with these scores must give the answers of BERT's rule.
  """
  rows, examples = encode_rows(tiny_tasks.vocabulary()), make_questions()
  assert len(rows.example_indices) > len(examples)
  rng = np.random.default_rng(1)
  rules = predictions.SpanRules(n_best=7, max_length=3)
  independent_logits, beams = [], []
  for num_tokens in np.diff(rows.starts):
    logits = rng.normal(size=(num_tokens, 2))
    best_starts, best_ends = np.argsort(-logits, 0)[:7].T
    spans = [
      [start, end, logits[start, 0], logits[end, 1]]
      for start in best_starts
      for end in best_ends
    ]
    # A span in the padding is no answer.
    spans.insert(3, [num_tokens, num_tokens, 90.0, 90.0])
    independent_logits.append(logits)
    # The first entry of a beam has the logit of no answer.
    beams.append(np.array([[0, 0, rng.normal(), 0], *spans]))
  expected_answers = predictions.answer_questions(
    rows, independent_logits, examples, may_lack_answer=False, rules=rules
  )
  answers = predictions.answer_questions(
    rows, beams, examples, may_lack_answer, rules
  )
  for example_index, (answer, expected) in enumerate(
    zip(answers, expected_answers, strict=True)
  ):
    assert (
      answer["nbest"] == expected["nbest"]
      and answer["best"] == expected["best"]
    )
    if not may_lack_answer:
      assert answer["text"] == answer["best"]
      continue
    windows = np.flatnonzero(rows.example_indices == example_index)
    least_null_logit = min(beams[i][0, 2] for i in windows)
    assert answer["null_odds"] == least_null_logit
    assert answer["text"] == ("" if least_null_logit > 0 else answer["best"])
  if may_lack_answer:
    strict_rules = rules._replace(threshold=-99.0)
    answers = predictions.answer_questions(
      rows, beams, examples, may_lack_answer=True, rules=strict_rules
    )
    assert {answer["text"] for answer in answers} == {""}


@pytest.mark.parametrize("family", ["wordpiece", "roberta", "gpt1"])
def test_batches_say_which_questions_have_no_answer(family, tmp_path):
  """A window may lack the answer although its question has an answer."""
  vocabulary = files.load_vocabulary(
    getattr(files, f"write_{family}")(tmp_path)
  )
  rows, examples = encode_rows(vocabulary, 40), make_questions()
  split_batches = batches.Batches(
    TASK, rows, pad=0, batch_size=8, shuffle=False
  )
  num_windows_without_answer = 0
  for step in range(split_batches.steps_per_epoch):
    batch = split_batches.batch(step)
    for row_in_batch, row_index in enumerate(batch["row"]):
      is_unanswerable = (
        row_index >= 0
        and not examples[rows.example_indices[row_index]]["answers"]
      )
      assert batch["unanswerable"][row_in_batch] == is_unanswerable
      num_windows_without_answer += (
        row_index >= 0
        and not is_unanswerable
        and not batch["labels"][row_in_batch].any()
      )
      if row_index >= 0:
        # In all families, the segment id is 1 in the context and at the row's
        # end.
        offsets = rows.offsets[
          rows.starts[row_index] : rows.starts[row_index + 1], 0
        ]
        segment_ids = batch["segment_ids"][row_in_batch, : len(offsets)]
        assert segment_ids[:-1].tolist() == (offsets[:-1] >= 0).tolist()
        assert segment_ids[-1] == 1
  assert (
    batch["unanswerable"].dtype == np.float32 and num_windows_without_answer > 3
  )


def test_bad_options_and_old_rows_are_refused(tmp_path):
  model = dict(family="bert", variant="tiny", vocab_size=64)
  with pytest.raises(ValueError, match="span_head='beam' is not one of apart"):
    finetune.build(model, "span", (), span_head="beam")
  with pytest.raises(ValueError, match="is for questions, and the task is tag"):
    finetune.build(model, "tagging", ("O",), span_head="joint")
  objective = finetune.build(model, "span", (), span_head="joint")
  batch = dict.fromkeys([*finetune.KEYS, "segment_ids"])
  with pytest.raises(ValueError, match="needs unanswerable"):
    objective.init(jax.random.key(0), batch)
  # `old_rows` do not say where the contexts begin.
  vocabulary = tiny_tasks.vocabulary()
  rows = encode_rows(vocabulary)
  old_rows = rows._replace(second_begins=np.diff(rows.starts).astype(np.int32))
  with pytest.raises(ValueError, match="`second` is not where the contexts"):
    splits = {"train": (old_rows, make_questions())}
    encoded_rows.save(str(tmp_path / "old"), TASK, splits, {}, {})


def write_folder(path):
  vocabulary = tiny_tasks.vocabulary()
  split = encode_rows(vocabulary), make_questions()
  meta = dict(
    pad=0,
    vocab_size=len(tiny_tasks.PIECES),
    special=vocabulary.special._asdict(),
    tokenizer="wordpiece",
    lower_case=True,
  )
  splits = {"train": split, "validation": split}
  encoded_rows.save(
    path, TASK, splits, meta, open_vocabulary.to_files(vocabulary)
  )


def make_config(model, folder, **changes):
  config = configs.load_defaults("squad:squad2")
  config["data"] |= dict(path=folder, buckets=(20, 64, 128))
  config["objective"] |= dict(span_head="joint")
  config |= dict(init_from=model, batch_size=8) | changes
  config["model"] |= dict(dtype="float32", dropout=0.0, attention_dropout=0.0)
  return config


@pytest.fixture(scope="module")
def fine_tuned_run(tmp_path_factory, compilation_cache):
  """Returns the config and the folder of a run that learnt twelve questions."""
  path = tmp_path_factory.mktemp("joint")
  tiny_tasks.write_model(path / "model")
  write_folder(str(path / "task"))
  config = make_config(str(path / "model"), str(path / "task"), total_steps=120)
  config["schedule"]["peak"] = 5e-3
  config["log"]["every"] = 20
  config["evaluate"]["every"] = 60
  config["checkpoint"] |= dict(every=60, keep=3)
  train.run(copy.deepcopy(config), str(path / "run"))
  return config, str(path / "run")


def heldout_rows(run):
  lines = logging.read_rows(f"{run}/metrics.jsonl")
  return [line for line in lines if line["split"] == "heldout"]


def test_a_run_learns_answers_and_that_there_is_none(fine_tuned_run):
  _, run = fine_tuned_run
  last_line = heldout_rows(run)[-1]
  assert last_line["step"] == 120 and last_line["loss"] < 0.1
  assert (
    last_line["exact"]
    == last_line["NoAns_exact"]
    == last_line["HasAns_exact"]
    == 100.0
  )
  weights = runs.read(run)
  assert weights.config["head"] == {"dropout": 0.0, "beam": 20}
  assert weights.arrays["answers/end_hidden/kernel"].shape == (64, 512)


def test_a_run_from_an_earlier_checkpoint_equals_the_whole_run(
  fine_tuned_run, tmp_path
):
  config, run = fine_tuned_run
  run_copy = str(tmp_path / "again")
  shutil.copytree(run, run_copy)
  shutil.rmtree(f"{run_copy}/checkpoints/120")
  train.run(copy.deepcopy(config), run_copy)
  expected_arrays, arrays = (runs.read(x).arrays for x in (run, run_copy))
  for name in expected_arrays:
    np.testing.assert_array_equal(expected_arrays[name], arrays[name], name)


def test_evaluate_predict_and_the_exported_file_agree(fine_tuned_run, tmp_path):
  pytest.importorskip("flatbuffers")
  config, run = fine_tuned_run
  folder = batches.open_folder(config["data"]["path"])
  split = batches.open_split(folder, "validation")
  predictor = predict.open_predictor(
    run, batch_size=5, max_length=20, no_answer=True
  )
  outputs = predict.predict_split(predictor, split, data_path="task")
  scores = metrics.evaluate(split.task, outputs, split.examples)
  assert scores["exact"] == heldout_rows(run)[-1]["exact"]
  examples = make_questions()
  live_answers = predict.predict(predictor, examples)
  for answer, example in zip(live_answers, examples, strict=True):
    right_answer = example["answers"][0]["text"] if example["answers"] else ""
    assert answer["answer"] == right_answer
    assert (answer["null_odds"] > 0) == (not right_answer)
    assert all(entry["text"] in example["context"] for entry in answer["nbest"])
  model = loading.open_model(run)
  path = str(tmp_path / "model.bin")
  # Rows of 20 tokens are padded to 32 tokens, but the beam's 401 spans are not
  # padded.
  export.save(path, model, (32, 40), ("cpu",))
  loaded_predictor = export.load(path, batch_size=3, no_answer=True)._replace(
    max_length=20
  )
  for answer, expected in zip(
    live_answers, predict.predict(loaded_predictor, examples), strict=True
  ):
    assert answer["answer"] == expected["answer"]
    np.testing.assert_allclose(
      answer["null_odds"], expected["null_odds"], rtol=1e-4
    )
  with pytest.raises(ValueError, match="transformers has no place for a head"):
    hf.write(str(tmp_path / "hf"), model.weights)


def test_the_option_head_keeps_the_head_of_the_old_run(
  fine_tuned_run, tmp_path
):
  config, run = fine_tuned_run
  config = copy.deepcopy(config) | dict(init_from=run, total_steps=1)
  config["objective"]["head"] = "taken"
  config["evaluate"]["every"] = config["checkpoint"]["every"] = 1
  config["schedule"]["peak"] = 1e-9
  train.run(copy.deepcopy(config), str(tmp_path / "taken"))
  assert heldout_rows(str(tmp_path / "taken"))[-1]["exact"] == 100.0
  config["objective"]["span_head"] = "apart"
  with pytest.raises(ValueError, match="has no classifier/dense/bias; pass"):
    train.run(config, str(tmp_path / "apart"))


@pytest.mark.slow
@pytest.mark.skipif(not DATA_FOLDER, reason="BERT_JAX_TEST_DATA is not set")
def test_a_run_learns_real_questions(tmp_path, compilation_cache):
  """XQuAD's contexts are cut into windows; 1 of 4 questions has no answer."""
  text = pathlib.Path(f"{DATA_FOLDER}/eval/squad/xquad.en.json").read_text(
    "utf-8"
  )
  paragraphs = json.loads(text)["data"][0]["paragraphs"][:3]
  questions_and_answers = [
    qa for paragraph in paragraphs for qa in paragraph["qas"]
  ]
  for qa in questions_and_answers[::4]:
    qa["answers"] = []
  questions_path = tmp_path / "some.json"
  questions_path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
  vocab_path = f"{DATA_FOLDER}/vocab/bert-base-uncased-vocab.txt"
  inputs = [
    task_inputs.Input(split, str(questions_path))
    for split in ("train", "validation")
  ]
  folder = str(tmp_path / "task")
  task = task_inputs.find_task("squad2")
  prepare_task.prepare(task, inputs, vocab_path, folder, length=128, stride=64)
  model = dict(variant="tiny", family="bert")
  config = make_config("", folder, total_steps=240)
  config["model"] |= model
  config["schedule"]["peak"] = 2e-3
  config["checkpoint"] |= dict(every=240)
  config["evaluate"]["every"] = 240
  train.run(config, str(tmp_path / "run"))
  last_line = heldout_rows(str(tmp_path / "run"))[-1]
  assert last_line["exact"] > 90.0, last_line
