"""Tests that the sequences of a packed row do not see each other.

Recipes make the rows. The objectives are those of SpanBERT, with its boundary
loss, and of GPT-1.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numbered_corpora import SPECIAL
from prepared import random_documents
from tiny_families import fast_jit

from bert_jax import models, objectives
from bert_jax.corpus.reader import corpus_from_documents
from bert_jax.examples import assembly, recipes
from bert_jax.models.encoder import Embeddings
from bert_jax.objectives import lm

LENGTH, MAX_SEQUENCES, VOCAB_SIZE, NUM_ROWS = 96, 5, 64, 3
SIZES = dict(vocab_size=VOCAB_SIZE, hidden=16, num_layers=2, heads=2, mlp=32)
SIZES |= dict(max_positions=LENGTH, dropout=0.0, initializer_range=0.3)
SIZES |= dict(attention_dropout=0.0)
# Name -> (builder, the builder's options, model, the objective's options, the
# objective's name).
CASES = {
  "spanbert": (
    "doc_sentences",
    dict(max_predictions=20, masking="span", replacement="bert", count="ceil"),
    dict(family="bert", variant="tiny"),
    dict(pairs=False, span_boundary=True),
    "mlm",
  ),
  "gpt": ("lm", {}, dict(family="gpt", variant="base"), {}, "lm"),
}


@functools.cache
def make_objective_and_batches(case):
  """Returns an objective, parameters, a packed and an unpacked batch.

  The unpacked batch has one sequence of the packed batch in each row.
  """
  builder, options, model, objective_options, objective_name = CASES[case]
  documents = random_documents(
    60, seed=0, vocab_size=VOCAB_SIZE, max_sentences=4, max_words=8
  )
  corpus = corpus_from_documents(
    documents,
    [
      [[True] * len(sentence) for sentence in document]
      for document in documents
    ],
  )
  packed_recipe, single_recipe = (
    recipes.RECIPES[builder](
      SPECIAL, VOCAB_SIZE, length=LENGTH, max_sequences=max_sequences, **options
    )
    for max_sequences in (MAX_SEQUENCES, 1)
  )
  examples = packed_recipe.index(corpus, 0, corpus.num_documents, 0)
  examples = examples[(examples["length"] > 0).sum(1) >= 3][:NUM_ROWS]
  assert len(examples) == NUM_ROWS
  global_numbers = np.arange(NUM_ROWS, dtype=np.uint64)
  batch = packed_recipe.build(corpus, examples, global_numbers, 0)
  row_indices, sequence_indices = np.nonzero(examples["length"])
  sequence_numbers = global_numbers[row_indices] * np.uint64(
    MAX_SEQUENCES
  ) + sequence_indices.astype(np.uint64)
  single_batch = assembly.assemble(
    corpus,
    examples[row_indices, sequence_indices][:, None],
    sequence_numbers[:, None],
    0,
    single_recipe.build.keywords["layout"],
  )
  objective = objectives.build(objective_name, SIZES | model, objective_options)
  params = nn.unbox(fast_jit(objective.init)(jax.random.key(0), batch))
  return objective, params, batch, single_batch


def loss_sums(case, params, batch, shift=0.0):
  """Returns {name: sum of a loss}, with `shift` added to the embeddings."""

  def add(call, args, kwargs, context):
    output = call(*args, **kwargs)
    is_embeddings = isinstance(context.module, Embeddings)
    return (
      output + shift
      if is_embeddings and context.method_name == "__call__"
      else output
    )

  objective = make_objective_and_batches(case)[0]
  with nn.intercept_methods(add):
    # A loss takes: parameters, a teacher's parameters, the carry, a batch, a
    # random key, and whether the model trains.
    sums, _ = objective.loss(params, {}, {}, batch, jax.random.key(0), False)
  return {name: sums[name] for name in objective.coefficients}


def total_loss(case, params, batch, shift=0.0):
  return sum(loss_sums(case, params, batch, shift).values())


def zero_shift(batch):
  return jnp.zeros((*batch["input_ids"].shape, SIZES["hidden"]))


@pytest.fixture(autouse=True)
def use_small_chunks(monkeypatch):
  """Makes GPT-1's loss use chunks that begin and end inside sequences."""
  monkeypatch.setattr(lm, "CHUNK_POSITIONS", 20)


@pytest.mark.parametrize("case", CASES)
def test_packed_rows_have_the_losses_and_gradients_of_unpacked_rows(case):
  """Gradients agree within 1e-5 of an array's largest value, in float32.

  The gradient of a key's bias is 0 but for rounding. Because of it, 1e-6 of the
  largest value in all arrays is added to the tolerance.
  """
  _, params, batch, unpacked_batch = make_objective_and_batches(case)
  assert len(unpacked_batch["input_ids"]) >= 3 * NUM_ROWS
  value_and_grad = fast_jit(
    jax.value_and_grad(functools.partial(total_loss, case))
  )
  jitted_loss_sums = fast_jit(functools.partial(loss_sums, case))
  packed_losses, unpacked_losses = (
    jitted_loss_sums(params, batch),
    jitted_loss_sums(params, unpacked_batch),
  )
  for name, loss_sum in unpacked_losses.items():
    assert float(loss_sum) > 1
    np.testing.assert_allclose(packed_losses[name], loss_sum, rtol=1e-5)
  (_, packed_gradients), (_, unpacked_gradients) = (
    value_and_grad(params, batch),
    value_and_grad(params, unpacked_batch),
  )
  unpacked_gradients, packed_gradients = jax.device_get(
    [unpacked_gradients, packed_gradients]
  )
  min_tolerance = 1e-6 * max(
    abs(x).max() for x in jax.tree.leaves(unpacked_gradients)
  )
  for a, b in zip(
    jax.tree.leaves(packed_gradients),
    jax.tree.leaves(unpacked_gradients),
    strict=True,
  ):
    np.testing.assert_allclose(
      a, b, rtol=0, atol=1e-5 * abs(b).max() + min_tolerance
    )


def with_other_tokens(batch, sequence_number):
  """Returns a batch in which one sequence of each row is changed.

  Also returns a mask that is True at the tokens of this sequence.
  """
  is_inside = batch["sequence_ids"] == sequence_number
  changed_batch = dict(batch)
  is_text = is_inside & (batch["input_ids"] > 4)
  changed_batch["input_ids"] = np.where(
    is_text, (batch["input_ids"] + 7) % (VOCAB_SIZE - 5) + 5, batch["input_ids"]
  )
  if "lm_ids" in batch:
    changed_batch["lm_ids"] = np.where(
      is_inside, (batch["lm_ids"] + 3) % VOCAB_SIZE, batch["lm_ids"]
    )
  else:
    is_slot = np.take_along_axis(is_inside, batch["mlm_positions"], 1)
    is_slot &= batch["mlm_weights"] > 0
    assert is_slot.any(1).all()
    changed_batch["mlm_ids"] = np.where(
      is_slot, (batch["mlm_ids"] + 3) % VOCAB_SIZE, batch["mlm_ids"]
    )
  assert (changed_batch["input_ids"] != batch["input_ids"]).any(1).all()
  return changed_batch, is_inside


@pytest.mark.parametrize("sequence_number", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_a_changed_sequence_does_not_change_the_other_sequences(
  case, sequence_number
):
  """The hidden states and gradients of the other sequences stay bit-equal."""
  _, params, batch, _ = make_objective_and_batches(case)
  changed_batch, is_inside = with_other_tokens(batch, sequence_number)
  family = models.family(CASES[case][2]["family"])
  encoder = family.build(CASES[case][2]["variant"], **SIZES)
  names = ("input_ids", "segment_ids", "sequence_ids", "position_ids")
  hidden = fast_jit(
    lambda x: encoder.apply(
      {"params": params["encoder"]}, *(x.get(key) for key in names)
    )[0]
  )
  gradient = fast_jit(jax.grad(lambda d, x: total_loss(case, params, x, d)))
  for values in (
    [np.asarray(hidden(x)) for x in (batch, changed_batch)],
    [np.asarray(gradient(zero_shift(x), x)) for x in (batch, changed_batch)],
  ):
    is_in_other_sequence = ~is_inside & (batch["sequence_ids"] > 0)
    np.testing.assert_array_equal(
      values[0][is_in_other_sequence], values[1][is_in_other_sequence]
    )
    assert (values[0][is_inside] != values[1][is_inside]).any()
    assert abs(values[0][is_in_other_sequence]).max() > 1e-3


@pytest.mark.parametrize("case", CASES)
def test_the_loss_of_a_sequence_gives_others_no_gradient(case):
  """If only sequence 2 has a loss, only its embeddings get a gradient."""
  _, params, batch, _ = make_objective_and_batches(case)
  in_sequence_2 = batch["sequence_ids"] == 2
  batch_with_one_loss = dict(batch)
  if "lm_weights" in batch:
    batch_with_one_loss["lm_weights"] = np.where(
      in_sequence_2, batch["lm_weights"], 0.0
    )
  else:
    is_inside = np.take_along_axis(in_sequence_2, batch["mlm_positions"], 1)
    batch_with_one_loss["mlm_weights"] = np.where(
      is_inside, batch["mlm_weights"], 0.0
    )
  gradient = fast_jit(jax.grad(lambda d, x: total_loss(case, params, x, d)))
  gradients = np.asarray(gradient(zero_shift(batch), batch_with_one_loss))
  assert not gradients[~in_sequence_2].any()
  assert all(
    gradients[row][in_sequence_2[row]].any() for row in range(NUM_ROWS)
  )
