"""Compares ELMo's losses with numpy; tests its directions and its states."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_families import fast_jit

from bert_jax import objectives
from bert_jax.models import elmo
from bert_jax.objectives import elmo as elmo_objective
from bert_jax.text import characters
from bert_jax.training import optim, steps
from bert_jax.training.state import TrainState

VOCABULARY_SIZE = 30
MODEL_OPTIONS = dict(
  family="elmo",
  variant="original",
  filters=[[1, 4], [2, 6]],
  highways=1,
  hidden=5,
  cell=7,
  vocab_size=VOCABULARY_SIZE,
)
WORDS = [f"w{i}" for i in range(VOCABULARY_SIZE)]


def make_batch(
  num_rows, length, seed=0, lengths=None, has_backward_words=False
):
  """Returns a batch of random words; the targets are each word's neighbours.

  With `has_backward_words`, the backward direction reads different random
  words, which have nothing to do with the targets.
  """
  rng = np.random.default_rng(seed)
  ids = rng.integers(3, VOCABULARY_SIZE, (num_rows, length))
  is_word = (
    np.arange(length) < np.array(lengths or [length] * num_rows)[:, None]
  )
  spell = lambda ids: np.array(  # noqa: E731
    [[characters.word_ids(WORDS[i]) for i in row] for row in ids], np.int32
  )
  next_ids = np.roll(ids, -1, 1) * np.pad(is_word[:, 1:], ((0, 0), (0, 1)))
  previous_ids = np.roll(ids, 1, 1) * is_word * (np.arange(length) > 0)
  batch = dict(
    char_ids=spell(ids) * is_word[..., None].astype(np.int32),
    sequence_ids=is_word.astype(np.int32),
    next_ids=next_ids.astype(np.int32),
    next_weights=(next_ids > 0).astype(np.float32),
    previous_ids=previous_ids.astype(np.int32),
    previous_weights=(previous_ids > 0).astype(np.float32),
  )
  if has_backward_words:
    batch["back_char_ids"] = spell(
      rng.integers(3, VOCABULARY_SIZE, (num_rows, length))
    )
  return {key: jnp.asarray(array) for key, array in batch.items()}


def random_like(tree, seed=0):
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(0, 0.6, x.shape), jnp.float32),
    nn.unbox(tree),
  )


@pytest.fixture(scope="module")
def full_softmax_case():
  """Returns an objective, random parameters, a batch and the compiled loss.

  The parameters are drawn with a larger deviation than initial parameters.
  """
  objective = objectives.build("elmo", MODEL_OPTIONS, {})
  batch = make_batch(num_rows=3, length=7, lengths=[7, 4, 1])
  shapes = jax.eval_shape(objective.init, jax.random.key(0), batch)
  loss = fast_jit(objective.loss, static_argnums=5)
  return objective, random_like(shapes), batch, loss


def test_the_loss_agrees_with_numpy(full_softmax_case):
  """Numpy computes both losses from the output of the encoder's last layer.

  The loss of training is the mean of the two directions.
  """
  objective, params, batch, loss = full_softmax_case
  # A loss takes: parameters, a teacher's parameters, the carry, a batch, a
  # random key, and whether the model trains.
  sums, carry = loss(params, {}, {}, batch, jax.random.key(0), False)
  assert carry == {}
  encoder = elmo.build(
    **{key: value for key, value in MODEL_OPTIONS.items() if key != "family"}
  )
  all_layers = fast_jit(encoder.apply)(
    {"params": params["encoder"]}, batch["char_ids"]
  )
  last_layer = np.asarray(all_layers)[:, -1].astype(np.float64)
  table, bias = (
    np.asarray(x, np.float64)
    for x in (params["softmax"]["embedding"], params["bias"])
  )
  divisors = objective.divisors(batch)
  for direction, target, vectors in (
    ("forward", "next", last_layer[..., :5]),
    ("backward", "previous", last_layer[..., 5:]),
  ):
    logits = vectors @ table.T + bias
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    ids, target_weights = (
      np.asarray(batch[f"{target}_{key}"]) for key in ("ids", "weights")
    )
    expected = -(
      np.take_along_axis(logits, ids[..., None], 2)[..., 0] * target_weights
    )
    np.testing.assert_allclose(
      sums[f"{direction}_loss"], expected.sum(), rtol=1e-5
    )
    # In the three rows, 6, 3 and 0 words have a neighbour in this direction.
    assert divisors[f"{direction}_loss"] == 9
  assert objective.coefficients == {"forward_loss": 0.5, "backward_loss": 0.5}


def test_padding_enters_no_loss(full_softmax_case):
  """Changed characters and targets at padding change no loss."""
  _, params, batch, loss = full_softmax_case
  sums, _ = loss(params, {}, {}, batch, jax.random.key(0), False)
  is_word = batch["sequence_ids"] != 0
  other_batch = make_batch(num_rows=3, length=7, seed=1)
  changed_batch = dict(batch)
  changed_batch["char_ids"] = jnp.where(
    is_word[..., None], batch["char_ids"], other_batch["char_ids"]
  )
  for name in ("next", "previous"):
    changed_batch[f"{name}_ids"] = jnp.where(
      batch[f"{name}_weights"] > 0, batch[f"{name}_ids"], 9
    )
  changed_sums, _ = loss(
    params, {}, {}, changed_batch, jax.random.key(0), False
  )
  assert {key: float(value) for key, value in sums.items()} == {
    key: float(value) for key, value in changed_sums.items()
  }


def test_a_direction_never_sees_the_word_that_it_predicts(full_softmax_case):
  """If word t is changed, the logits that predict it stay bit-equal."""
  _, params, batch, _ = full_softmax_case
  module = elmo.ForPreTraining(
    elmo.build(
      **{key: value for key, value in MODEL_OPTIONS.items() if key != "family"}
    )
  )
  run = fast_jit(lambda params, batch: module.apply({"params": params}, batch))
  logits = run(params, batch)
  column = 3
  changed_char_ids = batch["char_ids"]
  changed_char_ids = changed_char_ids.at[0, column].set(
    np.array(characters.word_ids("zyz"))
  )
  changed_logits = run(params, batch | {"char_ids": changed_char_ids})
  # The forward direction predicts the changed word at the word before it; the
  # backward direction predicts it at the word after it.
  for name, predicted_at in (
    ("next_logits", column - 1),
    ("previous_logits", column + 1),
  ):
    np.testing.assert_array_equal(
      logits[name][0, predicted_at], changed_logits[name][0, predicted_at]
    )
    assert (
      np.asarray(logits[name][0, column]) != changed_logits[name][0, column]
    ).any()


def test_the_softmax_in_chunks_gives_the_same_loss(monkeypatch):
  """With a small `MAX_LOGITS`, the loss and its gradient do not change.

  The program then never has the logits of all positions at once.
  """
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(3, 7, 5)), jnp.float32)
  table, bias = (
    jnp.asarray(rng.normal(size=shape), jnp.float32)
    for shape in ((32, 5), (32,))
  )
  labels = jnp.asarray(rng.integers(0, 30, (3, 7)))
  weights = jnp.asarray(rng.integers(0, 2, (3, 7)), jnp.float32)

  def run(x, table, bias):
    return elmo_objective.full_softmax_sum(
      x, labels, weights, table, bias, vocab_size=30
    )

  full_result = fast_jit(jax.value_and_grad(run, (0, 1, 2)))(x, table, bias)
  assert "f32[3,7,32]" in str(jax.make_jaxpr(run)(x, table, bias))
  monkeypatch.setattr(elmo_objective, "MAX_LOGITS", 2 * 3 * 32)
  graph = jax.make_jaxpr(jax.grad(run, (0, 1, 2)))(x, table, bias)
  assert "f32[3,2,32]" in str(graph) and "[3,7,32]" not in str(graph)
  chunked_result = fast_jit(jax.value_and_grad(run, (0, 1, 2)))(x, table, bias)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
    full_result,
    chunked_result,
  )


def test_the_sampled_loss_agrees_with_numpy():
  """A drawn class that equals the label is left out.

  tf.nn.sampled_softmax_loss leaves it out, too.
  """
  rng = np.random.default_rng(1)
  vocab_size, num_classes = 50, 12
  hidden = rng.normal(size=(2, 3, 4)).astype(np.float32)
  table, bias = rng.normal(size=(vocab_size, 4)), rng.normal(size=vocab_size)
  labels = rng.integers(0, vocab_size, (2, 3))
  ids, num_tries = fast_jit(elmo_objective.draw_classes, static_argnums=(1, 2))(
    jax.random.key(0), num_classes, vocab_size
  )
  ids, num_tries = np.asarray(ids), float(num_tries)
  labels[0, 0] = ids[3]
  chances = np.log(
    (np.arange(vocab_size) + 2) / (np.arange(vocab_size) + 1)
  ) / np.log(vocab_size + 1)
  assert chances.sum() == pytest.approx(1.0)
  expected_counts = 1 - (1 - chances) ** num_tries
  logits = hidden @ table.T + bias - np.log(expected_counts)
  expected_losses = np.zeros((2, 3))
  for index in np.ndindex(2, 3):
    label = labels[index]
    classes = [label, *(i for i in ids if i != label)]
    class_logits = logits[index][classes]
    expected_losses[index] = (
      np.log(np.exp(class_logits).sum()) - class_logits[0]
    )

  def embedding_and_bias(i):
    return jnp.asarray(table[i], jnp.float32), jnp.asarray(bias[i])

  losses = elmo_objective.sampled_losses(
    jnp.asarray(hidden),
    labels,
    embedding_and_bias(labels),
    embedding_and_bias(ids),
    ids,
    num_tries,
    vocab_size,
  )
  np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)


def test_candidates_are_drawn_until_there_are_enough():
  """`draw_classes` returns `num_classes` different classes.

  Each class is drawn as often as in numpy, and the number of tries is between
  its limits.
  """
  vocab_size, num_classes, num_repeats = 40, 10, 3000
  ids, num_tries = jax.vmap(
    lambda key: elmo_objective.draw_classes(key, num_classes, vocab_size)
  )(jax.random.split(jax.random.key(0), num_repeats))
  ids, num_tries = np.asarray(ids), np.asarray(num_tries)
  assert all(len(set(row)) == num_classes for row in ids.tolist())
  assert ids.min() == 0 and ids.max() == vocab_size - 1
  assert (
    num_tries.min() >= num_classes
    and num_tries.max() <= elmo_objective.max_draws(num_classes, vocab_size)
  )
  shares = np.bincount(ids.ravel(), minlength=vocab_size) / num_repeats
  chances = np.log(
    (np.arange(vocab_size) + 2) / (np.arange(vocab_size) + 1)
  ) / np.log(vocab_size + 1)
  # Numpy draws one class after another without replacement: each class arrives
  # at a random time, and the first k classes are the drawn ones.
  rng = np.random.default_rng(0)
  arrival_times = rng.exponential(size=(num_repeats, vocab_size)) / chances
  expected_shares = (
    np.bincount(
      np.argsort(arrival_times, 1)[:, :num_classes].ravel(),
      minlength=vocab_size,
    )
    / num_repeats
  )
  np.testing.assert_allclose(
    shares, expected_shares, atol=5 * math.sqrt(0.5 / num_repeats)
  )
  with pytest.raises(ValueError, match="negatives=40.*fewer"):
    elmo_objective.max_draws(vocab_size, vocab_size)


def test_all_parts_of_a_large_vocabulary_are_drawn():
  """The largest ids have all remainders modulo 4.

  A draw in float32 would never give some of these ids.
  """
  vocab_size = 793_471
  ids, num_tries = fast_jit(elmo_objective.draw_classes, static_argnums=(1, 2))(
    jax.random.key(1), 8192, vocab_size
  )
  ids = np.asarray(ids)
  assert len(set(ids.tolist())) == 8192 and 12_000 < num_tries < 20_000
  large_ids = ids[ids > 400_000]
  # The share of ids above 400,000 is log((V + 1) / 400,001) / log(V + 1), where
  # V is the size of the vocabulary.
  share = math.log((vocab_size + 1) / 400_001) / math.log(vocab_size + 1)
  assert len(large_ids) == pytest.approx(float(num_tries) * share, rel=0.15)
  assert set((large_ids % 4).tolist()) == {0, 1, 2, 3}


def test_only_training_samples_the_softmax(full_softmax_case):
  _, params, batch, loss = full_softmax_case
  objective = objectives.build(
    "elmo", MODEL_OPTIONS | {"dropout": 0.0}, {"negatives": 8}
  )
  compute_loss = fast_jit(objective.loss, static_argnums=5)
  sampled_sums, resampled_sums = (
    compute_loss(params, {}, {}, batch, jax.random.key(i), True)[0]
    for i in (0, 1)
  )
  evaluated_sums = compute_loss(
    params, {}, {}, batch, jax.random.key(0), False
  )[0]
  expected_sums = loss(params, {}, {}, batch, jax.random.key(0), False)[0]
  for name, expected in expected_sums.items():
    assert sampled_sums[name] != resampled_sums[name]
    np.testing.assert_allclose(evaluated_sums[name], expected, rtol=1e-6)


def test_states_of_a_batch_enter_the_next_batch():
  """The state after the first half of a batch enters the second half.

  So in the forward direction, the losses of the halves add up to the loss of
  the full batch.
  """
  options = {"stateful": True}
  objective = objectives.build(
    "elmo", MODEL_OPTIONS | {"dropout": 0.0}, options
  )
  batch = make_batch(num_rows=2, length=8, has_backward_words=True)
  half_batches = [
    {key: value[:, i : i + 4] for key, value in batch.items()} for i in (0, 4)
  ]
  params = random_like(jax.eval_shape(objective.init, jax.random.key(0), batch))
  compute_loss = fast_jit(objective.loss, static_argnums=5)
  carry = nn.unbox(objective.init_carry(batch))
  key = jax.random.key(0)
  full_batch_sums, _ = compute_loss(params, {}, carry, batch, key, True)
  first_sums, carry = compute_loss(
    params, {}, carry, half_batches[0], key, True
  )
  second_sums, next_carry = compute_loss(
    params, {}, carry, half_batches[1], key, True
  )
  name = "forward_loss"
  np.testing.assert_allclose(
    full_batch_sums[name], first_sums[name] + second_sums[name], rtol=1e-5
  )
  assert jax.tree.structure(next_carry) == jax.tree.structure(carry)
  # The carry has the states. An evaluation neither reads nor changes it.
  evaluated_sums, carry_after = compute_loss(
    params, {}, carry, half_batches[1], key, False
  )
  sums_from_ones, _ = compute_loss(
    params, {}, jax.tree.map(jnp.ones_like, carry), half_batches[1], key, False
  )
  assert evaluated_sums[name] == sums_from_ones[name] != second_sums[name] and (
    jax.tree.map(lambda a, b: bool((a == b).all()), carry_after, carry)
    == jax.tree.map(lambda _: True, carry)
  )


def test_bad_models_and_batches_are_refused():
  with pytest.raises(ValueError, match="family='gpt'.*elmo"):
    objectives.build("elmo", MODEL_OPTIONS | {"family": "gpt"}, {})
  batch = make_batch(num_rows=2, length=4)
  key = jax.random.key(0)
  stateful_objective = objectives.build(
    "elmo", MODEL_OPTIONS, {"stateful": True}
  )
  with pytest.raises(ValueError, match="stateful=True.*streams=batch_size"):
    stateful_objective.init(key, batch)
  stateless_objective = objectives.build("elmo", MODEL_OPTIONS, {})
  with pytest.raises(ValueError, match="stateful=False.*streams=0"):
    stateless_objective.init(
      key, make_batch(num_rows=2, length=4, has_backward_words=True)
    )
  with pytest.raises(ValueError, match="'elmo' needs next_ids"):
    stateless_objective.init(
      key, {name: batch[name] for name in ("char_ids", "sequence_ids")}
    )
  states = nn.unbox(
    stateful_objective.init_carry(make_batch(num_rows=4, length=4))
  )
  with pytest.raises(ValueError, match="4 rows.*micro_batches=1"):
    stateful_objective.loss(
      {},
      {},
      states,
      make_batch(num_rows=2, length=4, has_backward_words=True),
      key,
      True,
    )


def test_a_step_changes_every_parameter():
  """The step uses Adagrad, states, the sampled softmax and dropout."""
  options = {"stateful": True, "negatives": 8}
  objective = objectives.build("elmo", MODEL_OPTIONS, options)
  schedule = optim.build_schedule(
    total_steps=10, name="constant", peak=0.2, warmup=0.0
  )
  assert float(schedule(9)) == pytest.approx(0.2)
  optimizer = optim.build_adagrad(
    schedule,
    name="adagrad",
    initial_accumulator=1.0,
    gradient_scale=20.0,
    clip_norm=10.0,
  )
  batch = make_batch(num_rows=2, length=4, has_backward_words=True)
  params = random_like(jax.eval_shape(objective.init, jax.random.key(0), batch))
  carry = nn.unbox(objective.init_carry(batch))
  state = TrainState(jnp.int32(0), params, optimizer.init(params), carry)
  step = fast_jit(
    steps.make_train_step(objective, optimizer, schedule, num_micro_batches=1)
  )
  next_state, metrics = step(state, {}, batch, jax.random.key(0))
  is_changed = jax.tree.map(
    lambda a, b: bool((a != b).any()), params, next_state.params
  )
  assert all(jax.tree.leaves(is_changed)), is_changed
  is_changed = jax.tree.map(
    lambda a, b: bool((a != b).any()), carry, next_state.carry
  )
  assert all(jax.tree.leaves(is_changed))
  assert metrics["loss"] == pytest.approx(
    0.5 * float(metrics["forward_loss"] + metrics["backward_loss"]), rel=1e-5
  )
