"""Tests the heads of tasks for every family, and the two models of ELECTRA.

ELECTRA's two models, a generator and a discriminator, are called its towers.
They share their embeddings.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_families import (
  FAMILY_NAMES,
  HIDDEN,
  build_encoder,
  fast_jit,
  random_encoder_params,
  random_params,
  token_ids,
)

from bert_jax import models
from bert_jax.models import electra, heads, task_heads

assert_close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5)


def make_batch(lengths, length=8):
  """Returns a batch of padded rows; row i has `lengths[i]` tokens."""
  ids = token_ids(len(lengths), length)
  is_real = np.arange(length) < np.array(lengths)[:, None]
  return {
    "input_ids": np.where(is_real, ids, 1).astype(np.int32),
    "sequence_ids": is_real.astype(np.int32),
  }


def make_model(name, head_class, *args):
  """Returns a model's parameters, and a function that calls the model.

  The function maps a batch to (logits, hidden states).
  """
  model = head_class(build_encoder(name), *args)
  params = random_params(model, make_batch([4]))

  @fast_jit
  def run(params, batch):
    logits, captured = model.apply(
      {"params": params},
      batch,
      capture_intermediates=lambda module, _: module.name == "encoder",
    )
    return logits, captured["intermediates"]["encoder"]["__call__"][0][0]

  return params, functools.partial(run, params)


def family_pooling(name):
  return models.family(name).POOLING


def test_the_pooling_of_each_family_is_as_published():
  assert {name: family.POOLING for name, family in models.FAMILIES.items()} == {
    "bert": heads.Pooling(activation="tanh"),
    "roberta": heads.Pooling(
      activation="tanh", input_dropout=True, dropout=0.0
    ),
    "albert": heads.Pooling(activation="tanh"),
    "electra": heads.Pooling(activation=None),
    "distilbert": heads.Pooling(activation="relu", dropout=0.2),
    "tinybert": heads.Pooling(activation="tanh"),
    "gpt": heads.Pooling(activation=None, last=True),
  }
  assert heads.Pooling(activation="tanh").dropout == 0.1
  assert (
    heads.Pooling(activation="gelu", input_dropout=True)
    == electra.DENSE_POOLING
  )


def test_the_objective_and_pooler_of_each_family_are_as_published():
  families = models.FAMILIES | models.WORD_FAMILIES
  assert {name: family.OBJECTIVE for name, family in families.items()} == {
    **dict.fromkeys(("bert", "roberta", "albert"), "mlm"),
    **dict.fromkeys(("distilbert", "tinybert"), "mlm"),
    **{"electra": "electra", "gpt": "lm", "elmo": "elmo"},
  }
  families_with_pooler = {
    name for name, family in models.FAMILIES.items() if family.PRETRAINED_POOLER
  }
  assert families_with_pooler == {"bert", "albert", "tinybert"}


NUMPY_ACTIVATIONS = {
  "tanh": np.tanh,
  "relu": lambda x: np.maximum(x, 0),
  "gelu": lambda x: x * np.vectorize(math.erf)(x / math.sqrt(2)) / 2 + x / 2,
}


def head_in_numpy(params, vectors, activation=None):
  """Computes a head in numpy from the encoder's vectors."""
  layers = [("classifier", lambda x: x)]
  if activation:
    layers.insert(0, ("pooler", NUMPY_ACTIVATIONS[activation]))
  for name, function in layers:
    dense = jax.tree.map(np.asarray, params[name]["dense"])
    vectors = function(np.asarray(vectors) @ dense["kernel"] + dense["bias"])
  return vectors


@pytest.mark.parametrize(
  "name,pooling",
  [
    *((name, family_pooling(name)) for name in FAMILY_NAMES),
    ("electra", electra.DENSE_POOLING),
  ],
)
def test_a_classifier_reads_the_vector_of_one_token(name, pooling):
  """GPT uses the last token before padding; other families use the first."""
  lengths = [3, 8, 1]
  params, run = make_model(name, task_heads.SequenceClassifier, pooling, 3)
  logits, hidden = run(make_batch(lengths))
  position = np.array(lengths) - 1 if name == "gpt" else 0
  vector = np.asarray(hidden)[np.arange(3), position]
  assert logits.shape == (3, 3) and logits.dtype == jnp.float32
  assert_close(logits, head_in_numpy(params, vector, pooling.activation))


def test_without_sequence_ids_gpt_reads_the_last_position():
  _, run = make_model(
    "gpt", task_heads.SequenceClassifier, family_pooling("gpt"), 2
  )
  batch = make_batch([8, 8])
  assert_close(run({"input_ids": batch["input_ids"]})[0], run(batch)[0])


@pytest.mark.parametrize(
  "name,head_class,args",
  [
    *((name, task_heads.TokenClassifier, (5,)) for name in FAMILY_NAMES),
    ("bert", task_heads.SpanClassifier, ()),
  ],
)
def test_logits_of_tokens_and_spans_are_a_linear_map(name, head_class, args):
  """The logits of a position are a linear map of the position's vector."""
  params, run = make_model(name, head_class, *args)
  logits, hidden = run(make_batch([3, 8]))
  assert logits.shape == (2, 8, *(args or (2,)))
  assert logits.dtype == jnp.float32
  assert_close(logits, head_in_numpy(params, hidden))


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt"])
def test_each_choice_has_its_own_logit(name):
  """Two examples of four choices give logits [2, 4]; one row gives [1, 1]."""
  _, run = make_model(
    name, task_heads.SequenceClassifier, family_pooling(name), 1
  )
  flat_batch = make_batch([3, 8, 5, 1, 7, 2, 8, 4])
  choice_batch = {key: x.reshape(2, 4, 8) for key, x in flat_batch.items()}
  logits = np.asarray(run(choice_batch)[0])
  assert logits.shape == (2, 4) and len(np.unique(logits.round(4))) == 8
  order = np.array([2, 0, 3, 1])
  permuted_batch = {key: x.copy() for key, x in choice_batch.items()}
  for x in permuted_batch.values():
    x[0] = x[0, order]
  permuted_logits = np.asarray(run(permuted_batch)[0])
  assert_close(permuted_logits[0], logits[0, order])
  # The logits of the second example do not change.
  assert_close(permuted_logits[1], logits[1])
  for row in (0, 5):
    row_logits = run({key: x[row : row + 1] for key, x in flat_batch.items()})[
      0
    ]
    assert row_logits.shape == (1, 1)
    assert_close(row_logits[0, 0], logits.ravel()[row])


def test_choices_need_one_label():
  model = task_heads.SequenceClassifier(
    build_encoder("bert"), family_pooling("bert"), num_labels=4
  )
  batch = {"input_ids": np.ones((2, 4, 8), np.int32)}
  with pytest.raises(ValueError, match="num_labels must be 1, not 4"):
    model.init(jax.random.key(0), batch)


def test_dropout_of_heads_acts_in_training_only():
  """The encoders have no dropout, so only the dropout of the head acts."""
  batch = make_batch([3, 8])
  encoder_without_dropout = build_encoder(
    "bert", num_layers=1, dropout=0.0, attention_dropout=0.0
  )
  pooling_without_dropout = heads.Pooling(
    activation="tanh", dropout=0.0, input_dropout=True
  )
  for model, has_dropout in (
    (
      task_heads.SequenceClassifier(
        encoder_without_dropout, heads.Pooling(activation=None), num_labels=2
      ),
      True,
    ),
    (
      task_heads.SequenceClassifier(
        encoder_without_dropout, pooling_without_dropout, num_labels=2
      ),
      False,
    ),
    (task_heads.TokenClassifier(encoder_without_dropout, num_labels=3), True),
    (task_heads.SpanClassifier(encoder_without_dropout), False),
  ):
    params = random_params(model, batch)
    # Without training, no random key is needed.
    jax.eval_shape(model.apply, {"params": params}, batch)

    @fast_jit
    def run(params, key, model=model):
      rngs = {"dropout": key}
      return model.apply({"params": params}, batch, train=True, rngs=rngs)

    logits, other_logits = (
      np.asarray(run(params, jax.random.key(seed))) for seed in (0, 1)
    )
    assert (logits != other_logits).any() == has_dropout, model


def test_the_head_of_roberta_has_dropout_before_its_dense_layer():
  """With rate 0.5, dropout turns each input of the dense layer into 0 or 2.

  The dense layer is the identity.
  """
  hidden = np.ones((1, 2, 64), np.float32)
  positions = np.zeros((1, 1), np.int32)
  pooler = heads.Pooler(
    dtype=jnp.dtype("float32"),
    kernel_init=jax.nn.initializers.ones,
    activation="relu",
    dropout=0.5,
  )
  params = {"dense": {"kernel": np.eye(64), "bias": np.zeros(64)}}
  rngs = {"dropout": jax.random.key(0)}
  output = pooler.apply({"params": params}, hidden, positions, True, rngs=rngs)
  assert set(np.unique(output)) == {0.0, 2.0}
  np.testing.assert_array_equal(
    pooler.apply({"params": params}, hidden, positions), 1
  )


@functools.cache
def make_towers():
  module = electra.ForPreTraining(build_encoder("electra"))
  batch = make_batch([6, 8])
  batch["mlm_positions"] = np.array([[1, 2], [0, 7]], np.int32)
  params = random_params(module, batch)
  return module, params, batch, fast_jit(module.apply)


def test_both_towers_read_the_same_tables():
  _, params, batch, run = make_towers()
  old_outputs = run({"params": params}, batch)
  assert {key: x.shape for key, x in old_outputs.items()} == {
    "mlm_logits": (2, 2, 50),
    "rtd_logits": (2, 8),
  }
  assert {x.dtype for x in old_outputs.values()} == {jnp.dtype("float32")}
  token_id = int(batch["input_ids"][0, 1])
  for table, index in (("word", token_id), ("position", 1), ("segment", 0)):
    changed_table = params["embeddings"][table]["embedding"].at[index].add(0.5)
    tables = params["embeddings"] | {table: {"embedding": changed_table}}
    new_outputs = run({"params": params | {"embeddings": tables}}, batch)
    for key in old_outputs:
      assert (
        np.asarray(old_outputs[key]) != np.asarray(new_outputs[key])
      ).any(), table


def test_the_loss_of_the_discriminator_gives_the_generator_no_gradient():
  """The generator's loss gives the discriminator no gradient either.

  The tables get a gradient from both losses.
  """
  module, params, batch, _ = make_towers()

  def has_gradient(method):
    def loss(params):
      logits = module.apply({"params": params}, batch, method=method)
      return (logits**2).sum()

    grads = fast_jit(jax.grad(loss))(params)
    return {
      name: any(np.asarray(x).any() for x in jax.tree.leaves(tree))
      for name, tree in grads.items()
    }

  assert has_gradient("discriminate") == dict(
    embeddings=True, discriminator=True, rtd=True, generator=False, mlm=False
  )
  assert has_gradient("generate") == dict(
    embeddings=True, discriminator=False, rtd=False, generator=True, mlm=True
  )


def test_the_encoder_of_electra_can_be_the_discriminator():
  """An encoder of ELECTRA has the tables and one tower.

  With the parameters of the discriminator, it gives the discriminator's states.
  """
  module, params, batch, _ = make_towers()
  assert set(random_encoder_params("electra")) == {"embeddings", "tower"}
  encoder_params = {
    "embeddings": params["embeddings"],
    "tower": params["discriminator"],
  }
  hidden, _ = build_encoder("electra").apply(
    {"params": encoder_params}, batch["input_ids"], None, batch["sequence_ids"]
  )
  assert hidden.shape == (2, 8, HIDDEN)
  rtd = electra.TokenDiscriminator(
    activation="gelu",
    dtype=jnp.dtype("float32"),
    kernel_init=jax.nn.initializers.ones,
  )
  logits = rtd.apply({"params": params["rtd"]}, hidden)
  expected = module.apply({"params": params}, batch, method="discriminate")
  assert_close(logits, expected)
