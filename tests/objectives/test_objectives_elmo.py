"""Compares ELMo's losses with plain numpy; tests directions and states."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_families import jit

from bert_jax import objectives
from bert_jax.models import elmo
from bert_jax.objectives import elmo as elmo_objective
from bert_jax.text import characters
from bert_jax.training import optim, steps
from bert_jax.training.state import TrainState

VOCABULARY = 30
MODEL = dict(
  family="elmo",
  variant="original",
  filters=[[1, 4], [2, 6]],
  highways=1,
  hidden=5,
  cell=7,
  vocab_size=VOCABULARY,
)
WORDS = [f"w{i}" for i in range(VOCABULARY)]


def make_batch(rows, length, seed=0, lengths=None, back=False):
  """Returns random words; the targets are their neighbours in the row."""
  rng = np.random.default_rng(seed)
  ids = rng.integers(3, VOCABULARY, (rows, length))
  real = np.arange(length) < np.array(lengths or [length] * rows)[:, None]
  spelt = lambda ids: np.array(  # noqa: E731
    [[characters.word_ids(WORDS[i]) for i in row] for row in ids], np.int32
  )
  after = np.roll(ids, -1, 1) * np.pad(real[:, 1:], ((0, 0), (0, 1)))
  before = np.roll(ids, 1, 1) * real * (np.arange(length) > 0)
  batch = dict(
    char_ids=spelt(ids) * real[..., None].astype(np.int32),
    sequence_ids=real.astype(np.int32),
    next_ids=after.astype(np.int32),
    next_weights=(after > 0).astype(np.float32),
    previous_ids=before.astype(np.int32),
    previous_weights=(before > 0).astype(np.float32),
  )
  if back:
    batch["back_char_ids"] = spelt(rng.integers(3, VOCABULARY, (rows, length)))
  return {key: jnp.asarray(array) for key, array in batch.items()}


def fill(tree, seed=0):
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(0, 0.6, x.shape), jnp.float32),
    nn.unbox(tree),
  )


@pytest.fixture(scope="module")
def full():
  """Returns an objective, parameters far from initial ones, a batch, the
  loss."""
  objective = objectives.build("elmo", MODEL, {})
  batch = make_batch(3, 7, lengths=[7, 4, 1])
  shapes = jax.eval_shape(objective.init, jax.random.key(0), batch)
  loss = jit(objective.loss, static_argnums=5)
  return objective, fill(shapes), batch, loss


def test_the_loss_is_that_of_straight_numpy(full):
  """Numpy begins with the encoder's layers, and averages the directions'
  means."""
  objective, params, batch, loss = full
  sums, carry = loss(params, {}, {}, batch, jax.random.key(0), False)
  assert carry == {}
  encoder = elmo.build(**{k: v for k, v in MODEL.items() if k != "family"})
  out = jit(encoder.apply)({"params": params["encoder"]}, batch["char_ids"])
  top = np.asarray(out)[:, -1].astype(np.float64)
  table, bias = (
    np.asarray(x, np.float64)
    for x in (params["softmax"]["embedding"], params["bias"])
  )
  weights = objective.weights(batch)
  for way, target, x in (
    ("forward", "next", top[..., :5]),
    ("backward", "previous", top[..., 5:]),
  ):
    logits = x @ table.T + bias
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    ids, weight = (
      np.asarray(batch[f"{target}_{k}"]) for k in ("ids", "weights")
    )
    right = -(np.take_along_axis(logits, ids[..., None], 2)[..., 0] * weight)
    np.testing.assert_allclose(sums[f"{way}_loss"], right.sum(), rtol=1e-5)
    # The three rows have 6, 3 and 0 words with a neighbour.
    assert weights[f"{way}_loss"] == 9
  assert objective.coefficients == {"forward_loss": 0.5, "backward_loss": 0.5}


def test_padding_enters_no_loss(full):
  """Other characters and targets at padding change nothing, nor an empty
  row."""
  _, params, batch, loss = full
  sums, _ = loss(params, {}, {}, batch, jax.random.key(0), False)
  real = batch["sequence_ids"] != 0
  other = make_batch(3, 7, seed=1)
  changed = dict(batch)
  changed["char_ids"] = jnp.where(
    real[..., None], batch["char_ids"], other["char_ids"]
  )
  for name in ("next", "previous"):
    changed[f"{name}_ids"] = jnp.where(
      batch[f"{name}_weights"] > 0, batch[f"{name}_ids"], 9
    )
  again, _ = loss(params, {}, {}, changed, jax.random.key(0), False)
  assert {k: float(v) for k, v in sums.items()} == {
    k: float(v) for k, v in again.items()
  }


def test_a_direction_never_sees_the_word_that_it_predicts(full):
  """Another word at t changes no logit that predicts word t, to the bit."""
  _, params, batch, _ = full
  module = elmo.ForPreTraining(
    elmo.build(**{k: v for k, v in MODEL.items() if k != "family"})
  )
  run = jit(lambda params, batch: module.apply({"params": params}, batch))
  logits = run(params, batch)
  place = 3
  chars = batch["char_ids"]
  chars = chars.at[0, place].set(np.array(characters.word_ids("zyz")))
  changed = run(params, batch | {"char_ids": chars})
  # The forward direction predicts it at the word before, the backward direction
  # at the word after.
  for name, seen_from in (
    ("next_logits", place - 1),
    ("previous_logits", place + 1),
  ):
    np.testing.assert_array_equal(
      logits[name][0, seen_from], changed[name][0, seen_from]
    )
    assert (np.asarray(logits[name][0, place]) != changed[name][0, place]).any()


def test_parts_of_the_softmax_add_up(monkeypatch):
  """Value and gradient are equal, and logits of all words never exist at
  once."""
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(3, 7, 5)), jnp.float32)
  table, bias = (
    jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((32, 5), (32,))
  )
  labels = jnp.asarray(rng.integers(0, 30, (3, 7)))
  weights = jnp.asarray(rng.integers(0, 2, (3, 7)), jnp.float32)

  def run(x, table, bias):
    return elmo_objective.full_sum(x, labels, weights, table, bias, 30)

  whole = jit(jax.value_and_grad(run, (0, 1, 2)))(x, table, bias)
  assert "f32[3,7,32]" in str(jax.make_jaxpr(run)(x, table, bias))
  monkeypatch.setattr(elmo_objective, "LOGITS", 2 * 3 * 32)
  graph = jax.make_jaxpr(jax.grad(run, (0, 1, 2)))(x, table, bias)
  assert "f32[3,2,32]" in str(graph) and "[3,7,32]" not in str(graph)
  parts = jit(jax.value_and_grad(run, (0, 1, 2)))(x, table, bias)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
    whole,
    parts,
  )


def test_the_sampled_loss_is_that_of_straight_numpy():
  """As in tf.nn.sampled_softmax_loss, hits of the label are left out."""
  rng = np.random.default_rng(1)
  v, k = 50, 12
  hidden = rng.normal(size=(2, 3, 4)).astype(np.float32)
  table, bias = rng.normal(size=(v, 4)), rng.normal(size=v)
  labels = rng.integers(0, v, (2, 3))
  ids, tries = jit(elmo_objective.draw, static_argnums=(1, 2))(
    jax.random.key(0), k, v
  )
  ids, tries = np.asarray(ids), float(tries)
  labels[0, 0] = ids[3]
  p = np.log((np.arange(v) + 2) / (np.arange(v) + 1)) / np.log(v + 1)
  assert p.sum() == pytest.approx(1.0)
  expected = 1 - (1 - p) ** tries
  logits = hidden @ table.T + bias - np.log(expected)
  right = np.zeros((2, 3))
  for place in np.ndindex(2, 3):
    label = labels[place]
    classes = [label, *(i for i in ids if i != label)]
    row = logits[place][classes]
    right[place] = np.log(np.exp(row).sum()) - row[0]
  take = lambda i: (jnp.asarray(table[i], jnp.float32), jnp.asarray(bias[i]))  # noqa: E731
  losses = elmo_objective.sampled_losses(
    jnp.asarray(hidden), labels, take(labels), take(ids), ids, tries, v
  )
  np.testing.assert_allclose(losses, right, rtol=1e-4)


def test_candidates_are_drawn_until_there_are_enough():
  """The classes differ; their counts and the number of draws fit the
  formula."""
  v, k, times = 40, 10, 3000
  ids, tries = jax.vmap(lambda key: elmo_objective.draw(key, k, v))(
    jax.random.split(jax.random.key(0), times)
  )
  ids, tries = np.asarray(ids), np.asarray(tries)
  assert all(len(set(row)) == k for row in ids.tolist())
  assert ids.min() == 0 and ids.max() == v - 1
  assert tries.min() >= k and tries.max() <= elmo_objective.draws_for(k, v)
  share = np.bincount(ids.ravel(), minlength=v) / times
  p = np.log((np.arange(v) + 2) / (np.arange(v) + 1)) / np.log(v + 1)
  # Numpy draws one class after another, and never draws a class twice.
  rng = np.random.default_rng(0)
  race = rng.exponential(size=(times, v)) / p
  right = np.bincount(np.argsort(race, 1)[:, :k].ravel(), minlength=v) / times
  np.testing.assert_allclose(share, right, atol=5 * math.sqrt(0.5 / times))
  with pytest.raises(ValueError, match="negatives=40.*fewer"):
    elmo_objective.draws_for(v, v)


def test_large_vocabularies_are_reached_as_a_whole():
  """Classes between the steps of a float32 number are drawn too."""
  v = 793_471
  ids, tries = jit(elmo_objective.draw, static_argnums=(1, 2))(
    jax.random.key(1), 8192, v
  )
  ids = np.asarray(ids)
  assert len(set(ids.tolist())) == 8192 and 12_000 < tries < 20_000
  late = ids[ids > 400_000]
  # The share of the draws is log((V + 1) / 400,001) / log(V + 1).
  share = math.log((v + 1) / 400_001) / math.log(v + 1)
  assert len(late) == pytest.approx(float(tries) * share, rel=0.15)
  assert set((late % 4).tolist()) == {0, 1, 2, 3}


def test_training_samples_and_evaluation_does_not(full):
  _, params, batch, loss = full
  objective = objectives.build(
    "elmo", MODEL | {"dropout": 0.0}, {"negatives": 8}
  )
  run = jit(objective.loss, static_argnums=5)
  sampled, resampled = (
    run(params, {}, {}, batch, jax.random.key(i), True)[0] for i in (0, 1)
  )
  whole = run(params, {}, {}, batch, jax.random.key(0), False)[0]
  right = loss(params, {}, {}, batch, jax.random.key(0), False)[0]
  for name, expected in right.items():
    assert sampled[name] != resampled[name]
    np.testing.assert_allclose(whole[name], expected, rtol=1e-6)


def test_states_go_on_and_are_not_trained_through():
  """Forward, two batches with the state between them equal one long batch."""
  options = {"stateful": True}
  objective = objectives.build("elmo", MODEL | {"dropout": 0.0}, options)
  batch = make_batch(2, 8, back=True)
  parts = [{k: v[:, i : i + 4] for k, v in batch.items()} for i in (0, 4)]
  params = fill(jax.eval_shape(objective.init, jax.random.key(0), batch))
  run = jit(objective.loss, static_argnums=5)
  carry = nn.unbox(objective.carry(batch))
  key = jax.random.key(0)
  whole, _ = run(params, {}, carry, batch, key, True)
  first, carry = run(params, {}, carry, parts[0], key, True)
  second, after = run(params, {}, carry, parts[1], key, True)
  name = "forward_loss"
  np.testing.assert_allclose(whole[name], first[name] + second[name], rtol=1e-5)
  assert jax.tree.structure(after) == jax.tree.structure(carry)
  # An evaluation begins without states, and does not change the carry.
  sums, carry_after = run(params, {}, carry, parts[1], key, False)
  two, _ = run(
    params, {}, jax.tree.map(jnp.ones_like, carry), parts[1], key, False
  )
  assert sums[name] == two[name] != second[name] and (
    jax.tree.map(lambda a, b: bool((a == b).all()), carry_after, carry)
    == jax.tree.map(lambda _: True, carry)
  )


def test_what_cannot_train_is_refused():
  with pytest.raises(ValueError, match="family='gpt'.*elmo"):
    objectives.build("elmo", MODEL | {"family": "gpt"}, {})
  batch = make_batch(2, 4)
  key = jax.random.key(0)
  stateful = objectives.build("elmo", MODEL, {"stateful": True})
  with pytest.raises(ValueError, match="stateful=True.*streams=batch_size"):
    stateful.init(key, batch)
  plain = objectives.build("elmo", MODEL, {})
  with pytest.raises(ValueError, match="stateful=False.*streams=0"):
    plain.init(key, make_batch(2, 4, back=True))
  with pytest.raises(ValueError, match="'elmo' needs next_ids"):
    plain.init(key, {k: batch[k] for k in ("char_ids", "sequence_ids")})
  states = nn.unbox(stateful.carry(make_batch(4, 4)))
  with pytest.raises(ValueError, match="4 rows.*micro_batches=1"):
    stateful.loss({}, {}, states, make_batch(2, 4, back=True), key, True)


def test_a_step_changes_every_parameter():
  """The step has the published optimizer, states, sampled softmax and
  dropout."""
  options = {"stateful": True, "negatives": 8}
  objective = objectives.build("elmo", MODEL, options)
  schedule = optim.build_schedule(10, "constant", 0.2, 0.0)
  assert float(schedule(9)) == pytest.approx(0.2)
  optimizer = optim.build_adagrad(schedule, "adagrad", 1.0, 20.0, 10.0)
  batch = make_batch(2, 4, back=True)
  params = fill(jax.eval_shape(objective.init, jax.random.key(0), batch))
  carry = nn.unbox(objective.carry(batch))
  state = TrainState(jnp.int32(0), params, optimizer.init(params), carry)
  step = jit(steps.make_train_step(objective, optimizer, schedule, 1))
  after, metrics = step(state, {}, batch, jax.random.key(0))
  moved = jax.tree.map(lambda a, b: bool((a != b).any()), params, after.params)
  assert all(jax.tree.leaves(moved)), moved
  moved = jax.tree.map(lambda a, b: bool((a != b).any()), carry, after.carry)
  assert all(jax.tree.leaves(moved))
  assert metrics["loss"] == pytest.approx(
    0.5 * float(metrics["forward_loss"] + metrics["backward_loss"]), rel=1e-5
  )
