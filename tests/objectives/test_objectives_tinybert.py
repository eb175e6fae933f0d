"""Compares TinyBERT's general stage with plain numpy, and tests its restart."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from prepared import random_documents, write_prepared
from tiny_families import fast_jit, random_params
from tiny_runs import arrays_of_state, distillation_config, untimed_rows
from tiny_teachers import write_teacher

from bert_jax import objectives
from bert_jax.models import bert, tinybert
from bert_jax.objectives import tinybert as objective_lib
from bert_jax.training import train
from bert_jax.weights.load import open_model

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")
SIZES = dict(vocab_size=37, heads=2, max_positions=16, initializer_range=0.3)
STUDENT_OPTIONS = SIZES | dict(variant="4x312", hidden=8, num_layers=2, mlp=16)
TEACHER_OPTIONS = SIZES | dict(variant="base", hidden=12, num_layers=6, mlp=24)


def build_objective(model=None, teacher=None, **options):
  return objectives.build_function("tinybert")(
    STUDENT_OPTIONS | {"family": "tinybert"} | (model or {}),
    TEACHER_OPTIONS | {"family": "bert"} | (teacher or {}),
    **options,
  )


def draw_params(model, batch, maps="shared", width=12, seed=0):
  module = tinybert.ForDistillation(tinybert.build(**model), width, maps)
  return random_params(module, batch, seed=seed)


@pytest.fixture(scope="module")
def teacher(batch):
  encoder = bert.build(**TEACHER_OPTIONS)
  return {
    "encoder": random_params(encoder, batch["input_ids"], seed=5, scale=0.4)
  }


def loss_sums(objective, params, teacher_params, batch, train=False):
  loss = fast_jit(objective.loss, static_argnums=5)
  # A loss takes: parameters, a teacher's parameters, the carry, a batch, a
  # random key, and whether the model trains.
  sums, _ = loss(params, teacher_params, {}, batch, jax.random.key(0), train)
  return {name: float(total) for name, total in sums.items()}


def unmasked_ids(batch):
  """Returns `input_ids` before masking."""
  ids = np.array(batch["input_ids"])
  for row, slot in np.argwhere(np.asarray(batch["mlm_weights"]) > 0):
    column = batch["mlm_positions"][row, slot]
    ids[row, column] = batch["mlm_ids"][row, slot]
  return ids


def inner_states(encoder, params, ids, batch):
  """Returns the states and the attention probabilities of an encoder.

  The states are n + 1 arrays [b, l, d]: the embeddings and the layers' outputs.
  """
  run = fast_jit(encoder.apply, static_argnames=("collect",))
  _, collected = run(
    {"params": params}, ids, None, batch["sequence_ids"], collect=True
  )
  states = [
    np.asarray(collected["embeddings"]),
    *np.asarray(collected["hidden"]),
  ]
  return states, np.asarray(collected["attention"])


def raw_scores(params, layer, x):
  """Returns the attention scores [b, h, l, l] of a layer with the input `x`."""
  weights = params["layers"]["layer"]["attention"]
  query, key = (
    np.einsum("bld,dhk->bhlk", x, np.asarray(weights[name]["kernel"][layer]))
    + np.asarray(weights[name]["bias"][layer])[:, None]
    for name in ("query", "key")
  )
  return query @ key.swapaxes(2, 3) / np.sqrt(query.shape[-1])


def apply_linear_map(weights, x):
  return x @ np.asarray(weights["kernel"]) + np.asarray(weights["bias"])


@pytest.mark.parametrize("maps", tinybert.MAPS)
def test_sums_agree_with_numpy(batch, teacher, maps):
  params = draw_params(STUDENT_OPTIONS, batch, maps)
  sums = loss_sums(build_objective(maps=maps), params, teacher, batch)
  ids = unmasked_ids(batch)
  student_states, student_probabilities = inner_states(
    tinybert.build(**STUDENT_OPTIONS), params["encoder"], ids, batch
  )
  teacher_states, _ = inner_states(
    bert.build(**TEACHER_OPTIONS), teacher["encoder"], ids, batch
  )
  lengths = (11, 6)

  # The softmax of `raw_scores` gives the probabilities of the model.
  scores = raw_scores(params["encoder"], 1, student_states[1])[1, :, :6, :6]
  exponentials = np.exp(scores)
  np.testing.assert_allclose(
    exponentials / exponentials.sum(-1, keepdims=True),
    student_probabilities[1][1, :, :6, :6],
    rtol=1e-4,
  )

  # Layer i of the student learns from layer 3 * i of the teacher.
  attention_loss = hidden_loss = 0.0
  for student_layer in (1, 2):
    student_scores = raw_scores(
      params["encoder"], student_layer - 1, student_states[student_layer - 1]
    )
    teacher_scores = raw_scores(
      teacher["encoder"],
      3 * student_layer - 1,
      teacher_states[3 * student_layer - 1],
    )
    mapped_states = apply_linear_map(
      params["fit"], student_states[student_layer]
    )
    for row, length in enumerate(lengths):
      squared_gaps = np.square(student_scores - teacher_scores)[
        row, :, :length, :length
      ]
      attention_loss += squared_gaps.mean(0).sum()
      hidden_loss += (
        np.square(mapped_states - teacher_states[3 * student_layer])[
          row, :length
        ]
        .mean(-1)
        .sum()
      )
  embedding_map = params["fit_embeddings" if maps == "two" else "fit"]
  squared_gaps = np.square(
    apply_linear_map(embedding_map, student_states[0]) - teacher_states[0]
  )
  embedding_loss = sum(
    squared_gaps[row, :length].mean(-1).sum()
    for row, length in enumerate(lengths)
  )
  expected = dict(
    attention_loss=attention_loss,
    hidden_loss=hidden_loss,
    embedding_loss=embedding_loss,
  )
  assert sums == pytest.approx(expected, rel=1e-4)
  assert build_objective().divisors(batch) == dict(
    attention_loss=11 * 11 + 6 * 6, hidden_loss=17, embedding_loss=17
  )


def test_attention_scores_at_or_below_minus_100_count_as_0(
  batch, teacher, monkeypatch
):
  """This is the rule of the released program."""
  params = draw_params(STUDENT_OPTIONS, batch)
  loss_by_default = loss_sums(build_objective(), params, teacher, batch)[
    "attention_loss"
  ]
  monkeypatch.setattr(objective_lib, "MASKED_SCORE", 1e9)
  loss_if_all_count_as_0 = loss_sums(build_objective(), params, teacher, batch)[
    "attention_loss"
  ]
  assert loss_by_default > 0 and loss_if_all_count_as_0 == 0.0


def test_an_equal_student_has_nothing_to_learn(batch, teacher):
  """The student has the teacher's parameters; its map is the identity."""
  teacher_params = teacher["encoder"]
  identity = dict(kernel=jnp.eye(12), bias=jnp.zeros(12))
  params = {"encoder": teacher_params, "fit": identity}
  objective = build_objective(TEACHER_OPTIONS | {"family": "bert"})
  sums = loss_sums(objective, params, teacher, batch)
  assert sums == pytest.approx(dict.fromkeys(sums, 0.0), abs=1e-8)


def test_ids_at_padding_and_masks_change_no_sum(batch, teacher):
  params = draw_params(STUDENT_OPTIONS, batch)
  is_padding = np.asarray(batch["sequence_ids"]) == 0
  changed_ids = np.where(is_padding, 30, np.asarray(batch["input_ids"]))
  # Position 4 of row 0 is masked, so its id must not matter.
  changed_ids[0, 4] = 9
  other_batch = batch | {"input_ids": jnp.asarray(changed_ids, jnp.int32)}
  objective = build_objective()
  sums, other_sums = (
    loss_sums(objective, params, teacher, rows) for rows in (batch, other_batch)
  )
  assert sums == pytest.approx(other_sums, rel=1e-6)


def test_only_pairs_of_tokens_of_one_sequence_count(batch, teacher):
  """Each row has a sequence of 7 tokens and one of 4 tokens."""
  sequence_ids = np.where(np.arange(11) < 7, 1, 2) * np.ones((3, 1), np.int32)
  is_pair, is_token = objective_lib.real_pairs_and_tokens(
    {"sequence_ids": jnp.asarray(sequence_ids)}
  )
  assert is_pair.sum() == 3 * (49 + 16) and is_token.sum() == 33


def test_no_gradient_reaches_the_teacher(batch, teacher):
  def total(params, teacher_params):
    sums, _ = build_objective().loss(
      params, teacher_params, {}, batch, None, False
    )
    return sum(sums.values())

  params = draw_params(STUDENT_OPTIONS, batch)
  student_gradient, teacher_gradient = fast_jit(
    jax.grad(total, argnums=(0, 1))
  )(params, teacher)
  assert all(not np.any(x) for x in jax.tree.leaves(teacher_gradient))
  for name in ("query", "key", "value"):
    weights = student_gradient["encoder"]["layers"]["layer"]["attention"][name][
      "kernel"
    ]
    # The values of the last layer change no scores, but they have a gradient
    # through this layer's output.
    assert np.abs(weights).max(axis=(1, 2, 3)).min() > 0
  assert np.any(student_gradient["fit"]["kernel"])


@pytest.mark.parametrize(
  # Each case changes options of the student, of the teacher or of the
  # objective.
  "model, teacher, options, pattern",
  [
    (dict(heads=4), {}, {}, "model.heads=4, .* is 2.*model.heads=2"),
    (dict(num_layers=4), {}, {}, "does not divide .* 6 layers.*1, 2, 3, 6"),
    (dict(num_layers=12), {}, {}, "num_layers=12 does not divide"),
    (dict(vocab_size=9), {}, {}, "model.vocab_size=9, .* 37"),
    (
      dict(family="electra"),
      {},
      {},
      "family='electra' must be .* objective 'tinybert'",
    ),
    ({}, dict(family="roberta"), {}, "cannot learn from"),
    (
      {},
      {},
      dict(attention_weight=0, hidden_weight=0, embedding_weight=0),
      "all 0, so nothing would be learnt",
    ),
    ({}, {}, dict(maps="three"), "'three' is not one of shared, two"),
  ],
)
def test_bad_sizes_and_options_are_refused(model, teacher, options, pattern):
  with pytest.raises(ValueError, match=pattern):
    build_objective(model, teacher, **options)


@pytest.mark.slow
def test_a_restarted_run_equals_an_uninterrupted_run(
  tmp_path, compilation_cache
):
  """`open_model` opens the encoder of the run, without its map."""
  prepared = write_prepared(
    tmp_path / "p", random_documents(20, seed=0), random_documents(6, seed=1)
  )
  data_and_teacher = prepared, write_teacher(tmp_path / "teacher", prepared)
  changes = {"total_steps": 4, "checkpoint.every": 2, "evaluate.every": 2}
  changes |= {"model.hidden": 8, "objective.layers": None}
  run_path, restart_path = str(tmp_path / "whole"), str(tmp_path / "again")

  def config():
    return distillation_config(data_and_teacher, "tinybert:4x312", **changes)

  state = train.run(config(), run_path)
  shutil.copytree(run_path, restart_path)
  shutil.rmtree(f"{restart_path}/checkpoints/4")
  expected_arrays, restarted_arrays = (
    arrays_of_state(state),
    arrays_of_state(train.run(config(), restart_path)),
  )
  for key, array in expected_arrays.items():
    np.testing.assert_array_equal(array, restarted_arrays[key], err_msg=key)
  assert untimed_rows(run_path) == untimed_rows(restart_path)
  opened_model = open_model(run_path)
  assert (
    opened_model.config["task"] == "encoder"
    and "fit" not in opened_model.params
  )
  word_table = opened_model.params["encoder"]["embeddings"]["word"]["embedding"]
  assert word_table.shape == (64, 8)
