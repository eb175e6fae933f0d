"""Tests the loss of the next token, which is computed in chunks."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_families import fast_jit

from bert_jax import objectives
from bert_jax.models import gpt
from bert_jax.objectives import lm

MODEL_OPTIONS = dict(
  variant="base",
  vocab_size=37,
  hidden=16,
  num_layers=2,
  heads=2,
  mlp=32,
  max_positions=16,
  dropout=0.1,
  initializer_range=0.3,
)
NUM_ROWS, LENGTH = 3, 11


@pytest.fixture(scope="module")
def batch():
  """Returns rows of 11, 6 and 0 tokens, padded to 11 tokens."""
  rng = np.random.default_rng(0)
  lengths = np.array([11, 6, 0])
  is_real = np.arange(LENGTH) < lengths[:, None]
  ids = rng.integers(0, 37, (NUM_ROWS, LENGTH)) * is_real
  next_ids = np.roll(ids, -1, axis=1)
  is_target = np.arange(LENGTH) < lengths[:, None] - 1
  return dict(
    input_ids=jnp.asarray(ids, jnp.int32),
    sequence_ids=jnp.asarray(is_real, jnp.int32),
    lm_ids=jnp.asarray(next_ids * is_target, jnp.int32),
    lm_weights=jnp.asarray(is_target, jnp.float32),
  )


@pytest.fixture(scope="module")
def objective():
  return objectives.build("lm", MODEL_OPTIONS | {"family": "gpt"}, {})


@pytest.fixture(scope="module")
def params(objective, batch):
  return nn.unbox(fast_jit(objective.init)(jax.random.key(0), batch))


def test_the_loss_in_chunks_is_the_full_loss(
  objective, params, batch, monkeypatch
):
  """Chunks give the loss and the gradients that all logits at once give.

  The length of a row is not a multiple of the size of a chunk.
  """
  monkeypatch.setattr(lm, "CHUNK_POSITIONS", 4)
  module = gpt.ForPreTraining(gpt.build(**MODEL_OPTIONS))

  def full_loss(params):
    logits = module.apply({"params": params}, batch)["lm_logits"]
    label_log_probabilities = jnp.take_along_axis(
      jax.nn.log_softmax(logits), batch["lm_ids"][..., None], -1
    )[..., 0]
    num_right = (logits.argmax(-1) == batch["lm_ids"]) * batch["lm_weights"]
    return -(
      label_log_probabilities * batch["lm_weights"]
    ).sum(), num_right.sum()

  def loss_in_chunks(params):
    # A loss takes: parameters, a teacher's parameters, the carry, a batch, a
    # random key, and whether the model trains.
    sums, carry = objective.loss(params, {}, {}, batch, None, False)
    assert carry == {}
    return sums["lm_loss"], sums["lm_accuracy"]

  (loss, num_right), gradients = fast_jit(
    jax.value_and_grad(full_loss, has_aux=True)
  )(params)
  (chunked_loss, chunked_num_right), chunked_gradients = fast_jit(
    jax.value_and_grad(loss_in_chunks, has_aux=True)
  )(params)
  assert (
    chunked_loss == pytest.approx(float(loss), rel=1e-6)
    and chunked_num_right == num_right
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
    chunked_gradients,
    gradients,
  )
  divisors = objective.divisors(batch)
  assert divisors == {"lm_loss": 15.0, "lm_accuracy": 15.0}


def test_logits_of_all_positions_are_never_made(
  objective, params, batch, monkeypatch
):
  monkeypatch.setattr(lm, "CHUNK_POSITIONS", 4)

  def loss(params):
    return objective.loss(params, {}, {}, batch, None, False)[0]["lm_loss"]

  jaxpr_text = str(jax.make_jaxpr(jax.grad(loss))(params))
  assert f"f32[{NUM_ROWS},4,37]" in jaxpr_text
  for length in (LENGTH, 12):
    assert f"[{NUM_ROWS},{length},37]" not in jaxpr_text


def test_no_later_token_is_seen(objective, params, batch):
  """A changed last token changes no loss of the positions before it."""
  weights = batch["lm_weights"].at[0, -2:].set(0.0)
  changed_ids = batch["input_ids"].at[0, -1].add(1) % 37
  compute_loss = fast_jit(objective.loss, static_argnums=5)
  original_batch = batch | {"lm_weights": weights}
  changed_batch = original_batch | {"input_ids": changed_ids}
  losses = [
    float(
      compute_loss(params, {}, {}, compared_batch, jax.random.key(0), False)[0][
        "lm_loss"
      ]
    )
    for compared_batch in (original_batch, changed_batch)
  ]
  assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_bad_models_and_batches_are_refused(batch):
  with pytest.raises(ValueError, match="family='bert'.*gpt"):
    objectives.build("lm", MODEL_OPTIONS | {"family": "bert"}, {})
  objective = objectives.build("lm", MODEL_OPTIONS | {"family": "gpt"}, {})
  with pytest.raises(ValueError, match="'lm' needs lm_ids, lm_weights"):
    objective.init(
      jax.random.key(0),
      {key: batch[key] for key in ("input_ids", "sequence_ids")},
    )
