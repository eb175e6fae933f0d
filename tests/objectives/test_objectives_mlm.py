"""Tests the objective `mlm`, with the heads of ALBERT and SpanBERT."""

import functools
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_families import fast_jit, random_params

from bert_jax import models, objectives
from bert_jax.models import bert, heads
from bert_jax.objectives import base

SIZES = dict(vocab_size=30, hidden=16, num_layers=2, heads=2, mlp=32)
BERT_OPTIONS = dict(family="bert", variant="tiny", max_positions=40, **SIZES)
ALBERT_OPTIONS = BERT_OPTIONS | dict(
  family="albert", variant="base_v2", embedding_size=8
)


def make_batch():
  """Returns a batch of two packed rows.

  The first row has two pairs and a masked span of 2 tokens. The second row has
  one pair and a masked span of 18 tokens.
  """
  rng = np.random.default_rng(0)
  ids = rng.integers(5, 30, (2, 40))
  sequences = np.repeat([[1, 2], [1, 0]], 20, axis=1)
  positions = np.zeros((2, 20), np.int32)
  spans = np.zeros((2, 20, 2), np.int32)
  weights = np.zeros((2, 20), np.float32)
  positions[0, :2], spans[0, :2], weights[0, :2] = [3, 4], [2, 5], 1
  positions[1, :18], spans[1, :18] = np.arange(1, 19), [0, 19]
  weights[1, :18] = 1
  batch = dict(
    input_ids=ids,
    sequence_ids=sequences,
    position_ids=np.tile(np.arange(20), (2, 2)),
    segment_ids=np.zeros_like(ids),
    mlm_positions=positions,
    mlm_ids=np.take_along_axis(ids, positions, 1) * (weights > 0),
    span_positions=spans,
    cls_positions=np.array([[0, 20], [0, 0]]),
    pair_labels=np.array([[1, 0], [1, 0]]),
  )
  batch = {key: jnp.asarray(x, jnp.int32) for key, x in batch.items()}
  pair_weights = jnp.array([[1.0, 1.0], [1.0, 0.0]])
  return batch | {
    "mlm_weights": jnp.asarray(weights),
    "pair_weights": pair_weights,
  }


@pytest.mark.parametrize("objective_name", ["mlm", "lm"])
def test_a_new_family_says_which_objective_trains_it(
  objective_name, monkeypatch
):
  family = types.ModuleType("new")
  family.OBJECTIVE = objective_name
  family.ForPreTraining, family.flops = bert.ForPreTraining, bert.flops
  family.build = functools.partial(bert.build, "tiny")
  monkeypatch.setitem(models.FAMILIES, "new", family)
  sizes = {"family": "new", "max_positions": 40, **SIZES}
  if objective_name == "lm":
    with pytest.raises(ValueError, match="'new'.* trains bert.*tinybert\\."):
      objectives.build("mlm", sizes, {})
    return
  batch = make_batch()
  shapes, expected = (
    jax.eval_shape(objective.init, jax.random.key(0), batch)
    for objective in (
      objectives.build("mlm", model, {}) for model in (sizes, BERT_OPTIONS)
    )
  )
  assert shapes == expected


def test_the_error_without_a_family_names_the_constant_objective():
  pattern = "no family has OBJECTIVE='new'; .*'mlm'"
  with pytest.raises(ValueError, match=pattern):
    base.build_encoder("new", BERT_OPTIONS)


def test_the_loss_of_sentence_order_sums_over_packed_pairs():
  """The batch has 3 pairs; their metrics have the prefix "sop"."""
  batch = make_batch()
  objective = objectives.build("mlm", ALBERT_OPTIONS, {"pair_name": "sop"})
  params = nn.unbox(fast_jit(objective.init)(jax.random.key(0), batch))
  # A loss takes: parameters, a teacher's parameters, the carry, a batch, a
  # random key, and whether the model trains.
  sums, _ = fast_jit(objective.loss, static_argnums=5)(
    params, {}, {}, batch, jax.random.key(0), False
  )
  divisors = objective.divisors(batch)
  names = {"mlm_loss", "mlm_accuracy", "sop_loss", "sop_accuracy"}
  assert sums.keys() == divisors.keys() == names
  assert divisors["sop_loss"] == 3 and divisors["mlm_loss"] == 20
  assert objective.coefficients == {"mlm_loss": 1.0, "sop_loss": 1.0}

  family = models.family("albert")
  options = {
    key: value for key, value in ALBERT_OPTIONS.items() if key != "family"
  }
  module = family.ForPreTraining(family.build(**options))
  logits = fast_jit(module.apply)({"params": params}, batch)["pair_logits"]
  assert logits.shape == (2, 2, 2)
  log_probabilities = np.asarray(jax.nn.log_softmax(logits))
  loss = -(
    log_probabilities[0, 0, 1]
    + log_probabilities[0, 1, 0]
    + log_probabilities[1, 0, 1]
  )
  assert sums["sop_loss"] == pytest.approx(loss, rel=1e-5)


def gelu(x):
  return np.asarray(jax.nn.gelu(x, approximate=False))


def layer_norm(x, params):
  x = x - x.mean(-1, keepdims=True)
  x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
  return x * params["scale"] + params["bias"]


def test_spans_at_the_edge_of_a_sequence_have_no_boundary_loss():
  """A span has a boundary loss if `start > 0 and end < sent_length - 1`.

  This is the rule of the released code (span_masking), which adds the special
  tokens only after masking.
  """
  # The first row has sequences of 6 and 5 tokens; the second row has one
  # sequence of 12 tokens.
  sequences = jnp.array([[1] * 6 + [2] * 5 + [0], [1] * 12])
  spans_by_row = {
    0: [(1, 2), (3, 4), (7, 7), (8, 8), (9, 9)],
    1: [(1, 1), (3, 5), (10, 10)],
  }
  inner_spans = {(0, 8, 8), (1, 3, 5)}
  batch = dict(
    sequence_ids=sequences,
    mlm_positions=np.zeros((2, 8), int),
    span_positions=np.zeros((2, 8, 2), int),
    mlm_weights=np.zeros((2, 8), np.float32),
  )
  expected = np.zeros((2, 8))
  for row, row_spans in spans_by_row.items():
    slot = 0
    for first_column, last_column in row_spans:
      for column in range(first_column, last_column + 1):
        batch["mlm_positions"][row, slot] = column
        batch["span_positions"][row, slot] = first_column - 1, last_column + 1
        batch["mlm_weights"][row, slot] = 1
        expected[row, slot] = (row, first_column, last_column) in inner_spans
        slot += 1
  batch = {key: jnp.asarray(array) for key, array in batch.items()}
  span_weights = objectives.mlm.span_weights(batch)
  np.testing.assert_array_equal(span_weights, expected)
  span_weights = objectives.mlm.span_weights(batch, span_edges=True)
  np.testing.assert_array_equal(span_weights, batch["mlm_weights"])


def test_the_boundary_head_agrees_with_numpy():
  """Computes the logits of four slots in numpy.

  The logits depend on the hidden states of the two tokens beside a span, and on
  the offset of the slot's token in the span.
  """
  batch = make_batch()
  encoder = bert.build(
    **{key: value for key, value in BERT_OPTIONS.items() if key != "family"}
  )
  module = heads.ForPreTraining(encoder, pairs=False, span_boundary=True)
  params = random_params(module, batch)
  outputs = fast_jit(module.apply)({"params": params}, batch)
  input_names = ("input_ids", "segment_ids", "sequence_ids", "position_ids")
  hidden, _ = fast_jit(encoder.apply)(
    {"params": params["encoder"]}, *(batch[key] for key in input_names)
  )
  span_params = jax.tree.map(np.asarray, params["span"])
  assert span_params["position"]["embedding"].shape == (15, 200)
  word_table = np.asarray(params["encoder"]["embeddings"]["word"]["embedding"])
  # The slots hold token 2 of the short span, and tokens 1, 15 and 18 of the
  # long span. Token 18 gets the largest offset that has an embedding, 15.
  for row, slot, offset in ((0, 1, 2), (1, 0, 1), (1, 14, 15), (1, 17, 15)):
    left_position, right_position = np.asarray(batch["span_positions"])[
      row, slot
    ]
    x = np.concatenate(
      [
        hidden[row, left_position],
        hidden[row, right_position],
        span_params["position"]["embedding"][offset - 1],
      ]
    )
    for layer_number in ("1", "2"):
      dense = span_params["dense_" + layer_number]
      x = gelu(x @ dense["kernel"] + dense["bias"])
      x = layer_norm(x, span_params["norm_" + layer_number])
    np.testing.assert_allclose(
      outputs["span_logits"][row, slot],
      word_table @ x + span_params["bias"],
      rtol=1e-4,
      atol=1e-4,
    )
  del batch["span_positions"]
  assert fast_jit(module.apply)({"params": params}, batch).keys() == {
    "mlm_logits"
  }


def test_tokens_after_the_15th_of_a_span_have_no_boundary_loss():
  """The head has embeddings of 15 offsets in a span."""
  batch = make_batch()
  options = dict(pairs=False, span_boundary=True)
  # The long span touches both ends of its sequence, so it has a boundary loss
  # only with `span_edges`.
  released_objective = objectives.build("mlm", BERT_OPTIONS, options)
  assert released_objective.divisors(batch)["span_loss"] == 2
  objective = objectives.build(
    "mlm", BERT_OPTIONS, options | {"span_edges": True}
  )
  divisors = objective.divisors(batch)
  assert divisors["mlm_loss"] == 20 and divisors["span_loss"] == 2 + 15
  assert objective.coefficients == {"mlm_loss": 1.0, "span_loss": 1.0}
  params = nn.unbox(fast_jit(objective.init)(jax.random.key(0), batch))
  compute_loss = fast_jit(objective.loss, static_argnums=5)
  sums, _ = compute_loss(params, {}, {}, batch, jax.random.key(0), False)
  assert sums.keys() == divisors.keys()
  # Change the targets of the tokens 16 to 18 of the long span.
  other_batch = batch | {"mlm_ids": batch["mlm_ids"].at[1, 15:18].set(7)}
  changed_sums, _ = compute_loss(
    params, {}, {}, other_batch, jax.random.key(0), False
  )
  assert changed_sums["span_loss"] == sums["span_loss"]
  assert changed_sums["mlm_loss"] != sums["mlm_loss"]
  flops_without_boundary = objectives.build(
    "mlm", BERT_OPTIONS, dict(pairs=False)
  ).flops(batch)
  # Each of 40 slots needs 3 * 2 FLOPs for each weight of the head. The head
  # reads 2 * 16 + 200 numbers.
  boundary_flops = 3 * 2 * 40 * (232 * 16 + 16 * 16 + 16 * 30)
  assert objective.flops(batch) - flops_without_boundary == boundary_flops
  assert heads.NUM_SPAN_OFFSETS == 15


def test_bad_models_and_batches_are_refused():
  with pytest.raises(ValueError, match="family='gpt'.*bert, roberta, albert"):
    objectives.build("mlm", BERT_OPTIONS | {"family": "gpt"}, {})
  with pytest.raises(ValueError, match="pair_name='order'.*nsp, sop"):
    objectives.build("mlm", BERT_OPTIONS, {"pair_name": "order"})
  batch = make_batch()
  del batch["span_positions"], batch["pair_labels"]
  objective = objectives.build("mlm", BERT_OPTIONS, {"span_boundary": True})
  with pytest.raises(ValueError, match="needs pair_labels, span_positions"):
    objective.init(jax.random.key(0), batch)


def test_rows_of_two_segments_need_two_segment_embeddings():
  objective = objectives.build("mlm", BERT_OPTIONS | {"num_segments": 1}, {})
  with pytest.raises(ValueError, match="one segment.*full_sentences"):
    objective.init(jax.random.key(0), make_batch())
