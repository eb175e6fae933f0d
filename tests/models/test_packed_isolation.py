"""Sequences of a packed row do not see each other: states, losses, gradients.

The tests use SpanBERT's boundary objective and GPT-1's, on rows from the
recipes.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numbered_corpora import SPECIAL
from prepared import random_documents
from tiny_families import jit

from bert_jax import models, objectives
from bert_jax.corpus.reader import corpus_from_documents
from bert_jax.examples import assembly, recipes
from bert_jax.models.encoder import Embeddings
from bert_jax.objectives import lm

LENGTH, PLACES, VOCAB, ROWS = 96, 5, 64, 3
SIZES = dict(vocab_size=VOCAB, hidden=16, num_layers=2, heads=2, mlp=32)
SIZES |= dict(max_positions=LENGTH, dropout=0.0, initializer_range=0.3)
SIZES |= dict(attention_dropout=0.0)
# Each entry: builder, its options, model, the objective's options and name.
KINDS = {
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
def make_batches(kind):
  """Returns an objective, parameters, packed rows, and a row per sequence."""
  name, options, model, objective_options, objective = KINDS[kind]
  docs = random_documents(60, 0, VOCAB, sentences=4, words=8)
  corpus = corpus_from_documents(
    docs, [[[True] * len(s) for s in d] for d in docs]
  )
  packed_recipe, single_recipe = (
    recipes.RECIPES[name](
      SPECIAL, VOCAB, length=LENGTH, max_sequences=n, **options
    )
    for n in (PLACES, 1)
  )
  units = packed_recipe.index(corpus, 0, corpus.num_documents, 0)
  units = units[(units["length"] > 0).sum(1) >= 3][:ROWS]
  assert len(units) == ROWS
  numbers = np.arange(ROWS, dtype=np.uint64)
  batch = packed_recipe.build(corpus, units, numbers, 0)
  row, place = np.nonzero(units["length"])
  sequence_numbers = numbers[row] * np.uint64(PLACES) + place.astype(np.uint64)
  single_batch = assembly.assemble(
    corpus,
    units[row, place][:, None],
    sequence_numbers[:, None],
    0,
    single_recipe.build.keywords["layout"],
  )
  built_objective = objectives.build(
    objective, SIZES | model, objective_options
  )
  params = nn.unbox(jit(built_objective.init)(jax.random.key(0), batch))
  return built_objective, params, batch, single_batch


def losses(kind, params, batch, shift=0.0):
  """Returns the sums of the losses, with `shift` added to the embeddings."""

  def add(call, args, kwargs, context):
    out = call(*args, **kwargs)
    inputs = isinstance(context.module, Embeddings)
    return out + shift if inputs and context.method_name == "__call__" else out

  objective = make_batches(kind)[0]
  with nn.intercept_methods(add):
    sums, _ = objective.loss(params, {}, {}, batch, jax.random.key(0), False)
  return {name: sums[name] for name in objective.coefficients}


def total(kind, params, batch, shift=0.0):
  return sum(losses(kind, params, batch, shift).values())


def zeros(batch):
  return jnp.zeros((*batch["input_ids"].shape, SIZES["hidden"]))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
  """Makes chunks of GPT-1's loss that begin and end within sequences."""
  monkeypatch.setattr(lm, "POSITIONS", 20)


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_row_trains_as_its_sequences_alone(kind):
  """Gradients agree within 1e-5 of an array's largest value, in float32.

  1e-6 of the largest value in all arrays is added, since the gradient of a
  key's bias consists of rounding errors only.
  """
  _, params, batch, alone = make_batches(kind)
  assert len(alone["input_ids"]) >= 3 * ROWS
  run = jit(jax.value_and_grad(functools.partial(total, kind)))
  every = jit(functools.partial(losses, kind))
  packed_losses, alone_losses = every(params, batch), every(params, alone)
  for name, total_loss in alone_losses.items():
    assert float(total_loss) > 1
    np.testing.assert_allclose(packed_losses[name], total_loss, rtol=1e-5)
  (_, packed_gradients), (_, alone_gradients) = (
    run(params, batch),
    run(params, alone),
  )
  alone_gradients, packed_gradients = jax.device_get(
    [alone_gradients, packed_gradients]
  )
  least = 1e-6 * max(abs(x).max() for x in jax.tree.leaves(alone_gradients))
  for a, b in zip(
    jax.tree.leaves(packed_gradients),
    jax.tree.leaves(alone_gradients),
    strict=True,
  ):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * abs(b).max() + least)


def other_tokens(batch, place):
  """Returns a batch that differs in one sequence of each row, and its mask."""
  inside = batch["sequence_ids"] == place
  changed = dict(batch)
  text = inside & (batch["input_ids"] > 4)
  changed["input_ids"] = np.where(
    text, (batch["input_ids"] + 7) % (VOCAB - 5) + 5, batch["input_ids"]
  )
  if "lm_ids" in batch:
    changed["lm_ids"] = np.where(
      inside, (batch["lm_ids"] + 3) % VOCAB, batch["lm_ids"]
    )
  else:
    slots = np.take_along_axis(inside, batch["mlm_positions"], 1)
    slots &= batch["mlm_weights"] > 0
    assert slots.any(1).all()
    changed["mlm_ids"] = np.where(
      slots, (batch["mlm_ids"] + 3) % VOCAB, batch["mlm_ids"]
    )
  assert (changed["input_ids"] != batch["input_ids"]).any(1).all()
  return changed, inside


@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_other_tokens_in_a_sequence_are_not_seen_by_the_others(kind, place):
  """States and the embeddings' gradients are equal to the last bit."""
  _, params, batch, _ = make_batches(kind)
  changed, inside = other_tokens(batch, place)
  family = models.family(KINDS[kind][2]["family"])
  encoder = family.build(KINDS[kind][2]["variant"], **SIZES)
  names = ("input_ids", "segment_ids", "sequence_ids", "position_ids")
  hidden = jit(
    lambda x: encoder.apply(
      {"params": params["encoder"]}, *(x.get(key) for key in names)
    )[0]
  )
  gradient = jit(jax.grad(lambda d, x: total(kind, params, x, d)))
  for values in (
    [np.asarray(hidden(x)) for x in (batch, changed)],
    [np.asarray(gradient(zeros(x), x)) for x in (batch, changed)],
  ):
    others = ~inside & (batch["sequence_ids"] > 0)
    np.testing.assert_array_equal(values[0][others], values[1][others])
    assert (values[0][inside] != values[1][inside]).any()
    assert abs(values[0][others]).max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequences_loss_reaches_no_other_embeddings(kind):
  """If one sequence of a row has weights, the others' gradients are 0."""
  _, params, batch, _ = make_batches(kind)
  in_sequence_2 = batch["sequence_ids"] == 2
  only = dict(batch)
  if "lm_weights" in batch:
    only["lm_weights"] = np.where(in_sequence_2, batch["lm_weights"], 0.0)
  else:
    inside = np.take_along_axis(in_sequence_2, batch["mlm_positions"], 1)
    only["mlm_weights"] = np.where(inside, batch["mlm_weights"], 0.0)
  gradient = jit(jax.grad(lambda d, x: total(kind, params, x, d)))
  gradients = np.asarray(gradient(zeros(batch), only))
  assert not gradients[~in_sequence_2].any()
  assert all(gradients[row][in_sequence_2[row]].any() for row in range(ROWS))
