"""Tiny encoders of all families with parameters that are nowhere trivial."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import models

# TinyBERT is BERT's module in other sizes: test_family_sizes.py.
NAMES = ("bert", "roberta", "albert", "electra", "distilbert", "gpt")
VOCABULARY, LAYERS, HIDDEN = 50, 2, 32
SIZES = dict(
  vocab_size=VOCABULARY,
  hidden=HIDDEN,
  num_layers=LAYERS,
  heads=4,
  mlp=64,
  max_positions=40,
)
OWN = {
  "albert": dict(embedding_size=16),
  "electra": dict(embedding_size=16, generator_hidden=8),
}
# Compiling is what these tests wait for: a third of the time.
jit = functools.partial(
  jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)


def build(name, **overrides):
  """A tiny encoder of a family."""
  family = models.family(name)
  options = SIZES | OWN.get(name, {}) | overrides
  return family.build(next(iter(family.VARIANTS)), **options)


def shapes(module, *inputs, **static):
  """Parameters' shapes, boxed with logical axis names."""
  init = functools.partial(module.init, **static)
  return jax.eval_shape(init, jax.random.key(0), *inputs)["params"]


def fill(module, *inputs, seed=0, scale=0.2, **static):
  """Parameters of a module: every array random, scales about 1."""
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    x = rng.normal(size=leaf.shape) * scale
    return jnp.asarray(x + (path[-1].key == "scale"), jnp.float32)

  tree = nn.unbox(shapes(module, *inputs, **static))
  return jax.tree_util.tree_map_with_path(draw, tree)


@functools.cache
def parameters(name):
  """The parameters of `build(name)`."""
  return fill(build(name), jnp.ones((1, 4), jnp.int32))


@functools.cache
def encoder(name, collect=False):
  """`build(name)` with its parameters, a jitted function of its inputs."""
  run = jit(functools.partial(build(name).apply, collect=collect))
  return functools.partial(run, {"params": parameters(name)})


def token_ids(*shape, seed=0):
  """Ids that are not special, from 5 on."""
  rng = np.random.default_rng(seed)
  return rng.integers(5, VOCABULARY - 5, shape).astype(np.int32)
