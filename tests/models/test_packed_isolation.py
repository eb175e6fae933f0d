"""Sequences in one row know nothing of each other: states, losses, gradients.

SpanBERT's boundary objective and GPT-1's, on rows that the builders pack.
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
# (builder, its options, model, options of the objective, its name)
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
def make(kind):
  """Returns (objective, parameters, packed rows, the same sequences alone)."""
  name, options, model, more, objective = KINDS[kind]
  docs = random_documents(60, 0, VOCAB, sentences=4, words=8)
  corpus = corpus_from_documents(
    docs, [[[True] * len(s) for s in d] for d in docs]
  )
  packed, single = (
    recipes.RECIPES[name](
      SPECIAL, VOCAB, length=LENGTH, max_sequences=n, **options
    )
    for n in (PLACES, 1)
  )
  units = packed.index(corpus, 0, corpus.num_documents, 0)
  units = units[(units["length"] > 0).sum(1) >= 3][:ROWS]
  assert len(units) == ROWS
  numbers = np.arange(ROWS, dtype=np.uint64)
  batch = packed.build(corpus, units, numbers, 0)
  row, place = np.nonzero(units["length"])
  own = numbers[row] * np.uint64(PLACES) + place.astype(np.uint64)
  alone = assembly.assemble(
    corpus,
    units[row, place][:, None],
    own[:, None],
    0,
    single.build.keywords["layout"],
  )
  made = objectives.build(objective, SIZES | model, more)
  params = nn.unbox(jit(made.init)(jax.random.key(0), batch))
  return made, params, batch, alone


def losses(kind, params, batch, shift=0.0):
  """Sums of the losses, with something added to each token's embedding."""

  def add(call, args, kwargs, context):
    out = call(*args, **kwargs)
    inputs = isinstance(context.module, Embeddings)
    return out + shift if inputs and context.method_name == "__call__" else out

  objective = make(kind)[0]
  with nn.intercept_methods(add):
    sums, _ = objective.loss(params, {}, {}, batch, jax.random.key(0), False)
  return {name: sums[name] for name in objective.coefficients}


def total(kind, params, batch, shift=0.0):
  return sum(losses(kind, params, batch, shift).values())


def zeros(batch):
  return jnp.zeros((*batch["input_ids"].shape, SIZES["hidden"]))


@pytest.fixture(autouse=True)
def parts(monkeypatch):
  """Parts of GPT-1's loss that begin and end within sequences."""
  monkeypatch.setattr(lm, "POSITIONS", 20)


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_row_trains_as_its_sequences_alone(kind):
  """Within 1e-5 of an array's largest value, in float32.

  And 1e-6 of all arrays' largest: of a key's bias all is rounding.
  """
  _, params, batch, alone = make(kind)
  assert len(alone["input_ids"]) >= 3 * ROWS
  run = jit(jax.value_and_grad(functools.partial(total, kind)))
  every = jit(functools.partial(losses, kind))
  one, many = every(params, batch), every(params, alone)
  for name, value in many.items():
    assert float(value) > 1
    np.testing.assert_allclose(one[name], value, rtol=1e-5)
  (_, packed), (_, apart) = run(params, batch), run(params, alone)
  apart, packed = jax.device_get([apart, packed])
  least = 1e-6 * max(abs(x).max() for x in jax.tree.leaves(apart))
  for a, b in zip(jax.tree.leaves(packed), jax.tree.leaves(apart), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * abs(b).max() + least)


def other_tokens(batch, place):
  """The batch with other tokens and labels in one sequence of each row."""
  own = batch["sequence_ids"] == place
  changed = dict(batch)
  text = own & (batch["input_ids"] > 4)
  changed["input_ids"] = np.where(
    text, (batch["input_ids"] + 7) % (VOCAB - 5) + 5, batch["input_ids"]
  )
  if "lm_ids" in batch:
    changed["lm_ids"] = np.where(
      own, (batch["lm_ids"] + 3) % VOCAB, batch["lm_ids"]
    )
  else:
    inside = np.take_along_axis(own, batch["mlm_positions"], 1)
    inside &= batch["mlm_weights"] > 0
    assert inside.any(1).all()
    changed["mlm_ids"] = np.where(
      inside, (batch["mlm_ids"] + 3) % VOCAB, batch["mlm_ids"]
    )
  assert (changed["input_ids"] != batch["input_ids"]).any(1).all()
  return changed, own


@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_other_tokens_in_a_sequence_are_not_seen_by_the_others(kind, place):
  """States and gradients of the embeddings, to the last bit."""
  objective, params, batch, _ = make(kind)
  changed, own = other_tokens(batch, place)
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
    rest = ~own & (batch["sequence_ids"] > 0)
    np.testing.assert_array_equal(values[0][rest], values[1][rest])
    assert (values[0][own] != values[1][own]).any()
    assert abs(values[0][rest]).max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequences_loss_reaches_no_other_embeddings(kind):
  """Only one sequence of each row has weights: exact zeros elsewhere."""
  _, params, batch, _ = make(kind)
  own = batch["sequence_ids"] == 2
  only = dict(batch)
  if "lm_weights" in batch:
    only["lm_weights"] = np.where(own, batch["lm_weights"], 0.0)
  else:
    inside = np.take_along_axis(own, batch["mlm_positions"], 1)
    only["mlm_weights"] = np.where(inside, batch["mlm_weights"], 0.0)
  gradient = jit(jax.grad(lambda d, x: total(kind, params, x, d)))
  found = np.asarray(gradient(zeros(batch), only))
  assert not found[~own].any()
  assert all(found[row][own[row]].any() for row in range(ROWS))
