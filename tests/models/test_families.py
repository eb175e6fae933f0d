"""Tests padding, packing, masks, causality and dtypes of every encoder."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_families import (
  FAMILY_NAMES,
  HIDDEN,
  LAYERS,
  build_encoder,
  fast_jit,
  jitted_encoder,
  random_encoder_params,
  token_ids,
)

# This is RoBERTa's padding id. All families use it here, and no real token has
# it.
PADDING_ID = 1
NUM_REAL = 7
IDS = token_ids(1, NUM_REAL)
for_every_family = pytest.mark.parametrize("name", FAMILY_NAMES)
assert_close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5)


def make_segment_ids(name, ids):
  """Returns segment ids: 1 in the second half, but only 0 for RoBERTa."""
  is_second = np.arange(ids.shape[1]) > ids.shape[1] // 2
  return (is_second & (name != "roberta")).astype(np.int32) + np.zeros_like(ids)


def padded_inputs(name, ids, length, pads_left=False):
  """Returns ids, segment ids and sequence ids, all padded to `length`."""
  padding_length = length - ids.shape[1]
  pad_width = (
    (0, 0),
    (padding_length, 0) if pads_left else (0, padding_length),
  )
  return (
    np.pad(ids, pad_width, constant_values=PADDING_ID),
    np.pad(make_segment_ids(name, ids), pad_width),
    np.pad(np.ones_like(ids), pad_width),
  )


@functools.cache
def states_without_padding(name, seed=0):
  """Returns the hidden states of one sequence of NUM_REAL tokens."""
  ids = token_ids(1, NUM_REAL, seed=seed)
  return hidden_states(
    name, ids, make_segment_ids(name, ids), np.ones_like(ids)
  )


def hidden_states(name, *inputs):
  return jitted_encoder(name)(*inputs)[0]


def three_rows(name):
  """Returns three rows of 32, with NUM_REAL, 20 and 32 tokens."""
  rows = [
    padded_inputs(name, token_ids(1, num_tokens), 32)
    for num_tokens in (NUM_REAL, 20, 32)
  ]
  return [np.concatenate(arrays) for arrays in zip(*rows, strict=True)]


@functools.cache
def three_rows_and_outputs(name):
  """Returns three rows, and an encoder's output with all collected states."""
  inputs = three_rows(name)
  return inputs, jitted_encoder(name, collect=True)(*inputs)


@for_every_family
def test_padding_and_other_rows_change_nothing(name):
  """The test gives no positions, so RoBERTa makes them from the ids."""
  padded_states = hidden_states(name, *padded_inputs(name, IDS, 16))
  assert_close(padded_states[:, :NUM_REAL], states_without_padding(name))
  # An encoder that collects its states has the same output.
  for hidden in (
    three_rows_and_outputs(name)[1][0],
    three_rows_and_outputs(name)[1][1]["hidden"][-1],
  ):
    assert_close(hidden[:1, :NUM_REAL], states_without_padding(name))


@for_every_family
def test_padding_on_the_left_changes_nothing(name):
  positions = np.maximum(np.arange(16) - 9, 0)[None].astype(np.int32)
  padded_states = hidden_states(
    name, *padded_inputs(name, IDS, 16, pads_left=True), positions
  )
  assert_close(padded_states[:, 9:], states_without_padding(name))
  if name == "roberta":
    padded_states = hidden_states(
      name, *padded_inputs(name, IDS, 16, pads_left=True)
    )
    assert_close(padded_states[:, 9:], states_without_padding(name))


@functools.cache
def gradient_function(name, dtype="float32"):
  """Returns a function: (weights, *inputs) -> (gradients, hidden states).

  Each weight multiplies the loss of one position.
  """
  module = build_encoder(name, dtype=dtype)

  def loss(params, position_weights, *inputs):
    hidden, _ = module.apply({"params": params}, *inputs)
    cubes = hidden.astype(jnp.float32) ** 3 * position_weights[..., None]
    return cubes.sum(), hidden

  run = fast_jit(jax.grad(loss, has_aux=True))
  return functools.partial(run, random_encoder_params(name))


@for_every_family
def test_no_gradient_reaches_padding(name):
  """Embeddings that only padding reads get a gradient of exactly 0."""
  inputs = padded_inputs(name, IDS, 16)
  gradients = gradient_function(name)(inputs[2], *inputs)[0]["embeddings"]
  word_ids_with_gradient, positions_with_gradient = (
    np.flatnonzero(np.abs(gradients[key]["embedding"]).max(-1)).tolist()
    for key in ("word", "position")
  )
  first_position = 2 if name == "roberta" else 0
  assert word_ids_with_gradient == sorted({*IDS[0].tolist()})
  assert positions_with_gradient == list(
    range(first_position, first_position + NUM_REAL)
  )


@for_every_family
def test_sequences_of_a_packed_row_do_not_meet(name):
  """A row of 16 tokens has two sequences. Positions start from 0 in each."""
  second_ids = token_ids(1, NUM_REAL, seed=1)
  rows = [
    padded_inputs(name, IDS, NUM_REAL),
    padded_inputs(name, second_ids, NUM_REAL + 2),
  ]
  ids, segment_ids, is_real = (
    np.concatenate(arrays, 1) for arrays in zip(*rows, strict=True)
  )
  sequence_ids = is_real + (np.arange(16) >= NUM_REAL) * is_real
  positions = np.array([[*range(NUM_REAL), *range(NUM_REAL), 0, 0]], np.int32)
  packed_states = hidden_states(name, ids, segment_ids, sequence_ids, positions)
  assert_close(packed_states[:, :NUM_REAL], states_without_padding(name))
  assert_close(
    packed_states[:, NUM_REAL:-2], states_without_padding(name, seed=1)
  )


@pytest.mark.parametrize(
  "name,dtype",
  [
    # Half precision is slow, so the quick tests use it with one family only.
    pytest.param(name, dtype, marks=[pytest.mark.slow] * bool(slow))
    for name in FAMILY_NAMES
    for dtype in ("float32", "bfloat16", "float16")
    for slow in [dtype != "float32" and name != "albert"]
  ],
)
def test_fully_masked_rows_stay_finite(name, dtype):
  """If all tokens are padding, the outputs and gradients are finite."""
  ids, segment_ids, _ = padded_inputs(name, IDS, 16)
  zeros, ones = np.zeros_like(ids), np.ones_like(ids)
  grads, hidden = gradient_function(name, dtype)(ones, ids, segment_ids, zeros)
  assert hidden.dtype == dtype
  for x in [hidden, *jax.tree.leaves(grads)]:
    assert np.isfinite(np.asarray(x, np.float32)).all()


@for_every_family
def test_collected_states_and_probabilities_are_consistent(name):
  inputs, (hidden, collected) = three_rows_and_outputs(name)
  assert {key: x.shape for key, x in collected.items()} == {
    "embeddings": (3, 32, HIDDEN),
    "hidden": (LAYERS, 3, 32, HIDDEN),
    "attention": (LAYERS, 3, 4, 32, 32),
  }
  np.testing.assert_array_equal(collected["hidden"][-1], hidden)
  attention = np.asarray(collected["attention"])
  assert attention.dtype == np.float32
  assert_close(attention.sum(-1), 1)
  is_real_key = inputs[2][:, None, :] * np.ones((1, 32, 1), int)
  if name == "gpt":
    is_real_key = np.tril(is_real_key)
  masked_weights = attention.transpose(1, 3, 4, 0, 2)[is_real_key == 0]
  real_weights = attention.transpose(1, 3, 4, 0, 2)[is_real_key == 1]
  assert (
    masked_weights.size
    and not masked_weights.any()
    and (real_weights > 0).all()
  )


@pytest.mark.parametrize("name", ["bert", "electra"])
def test_first_layer_alone_gives_the_first_collected_state(name):
  inputs, (_, collected) = three_rows_and_outputs(name)
  params = dict(random_encoder_params(name))
  encoder_params = params["tower"] if name == "electra" else params
  one_layer_params = dict(
    encoder_params,
    layers=jax.tree.map(lambda x: x[:1], encoder_params["layers"]),
  )
  params = (
    dict(params, tower=one_layer_params)
    if name == "electra"
    else one_layer_params
  )
  hidden, _ = fast_jit(build_encoder(name, num_layers=1).apply)(
    {"params": params}, *inputs
  )
  assert_close(hidden, collected["hidden"][0])


@for_every_family
def test_only_gpt_is_causal(name):
  """Changed tokens change the states before them, except in GPT."""
  ids = token_ids(1, NUM_REAL)
  changed_ids = np.concatenate([ids[:, :4], ids[:, 4:] + 1], 1)
  inputs = make_segment_ids(name, ids), np.ones_like(ids)
  states, changed_states = (
    np.asarray(hidden_states(name, i, *inputs)) for i in (ids, changed_ids)
  )
  is_unchanged = (states == changed_states).all(-1)[0]
  assert is_unchanged.tolist() == [name == "gpt"] * 4 + [False] * 3
