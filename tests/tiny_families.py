"""Makes tiny encoders of all families with random parameters."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import models

# TinyBERT is missing: it is BERT's module with other sizes
# (test_family_sizes.py).
FAMILY_NAMES = ("bert", "roberta", "albert", "electra", "distilbert", "gpt")
VOCAB_SIZE, LAYERS, HIDDEN = 50, 2, 32
SIZES = dict(
  vocab_size=VOCAB_SIZE,
  hidden=HIDDEN,
  num_layers=LAYERS,
  heads=4,
  mlp=64,
  max_positions=40,
)
MORE_SIZES = {
  "albert": dict(embedding_size=16),
  "electra": dict(embedding_size=16, generator_hidden=8),
}
# Tests of tiny models spend most of their time compiling. Without optimization
# they take a third of the time.
fast_jit = functools.partial(
  jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)


def build_encoder(name, **overrides):
  """Returns a tiny encoder of a family."""
  family = models.family(name)
  options = SIZES | MORE_SIZES.get(name, {}) | overrides
  return family.build(next(iter(family.VARIANTS)), **options)


def param_shapes(module, *inputs, **static):
  """Returns the shapes of the parameters, in boxes with their axis names."""
  init = functools.partial(module.init, **static)
  return jax.eval_shape(init, jax.random.key(0), *inputs)["params"]


def random_params(module, *inputs, seed=0, scale=0.2, **static):
  """Returns random parameters of a module; LayerNorm's scales are about 1."""
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    x = rng.normal(size=leaf.shape) * scale
    return jnp.asarray(x + (path[-1].key == "scale"), jnp.float32)

  tree = nn.unbox(param_shapes(module, *inputs, **static))
  return jax.tree_util.tree_map_with_path(draw, tree)


@functools.cache
def random_encoder_params(name):
  """Returns random parameters of `build_encoder(name)`."""
  return random_params(build_encoder(name), jnp.ones((1, 4), jnp.int32))


@functools.cache
def jitted_encoder(name, collect=False):
  """Returns `build_encoder(name)` with parameters, as a jitted function."""
  run = fast_jit(functools.partial(build_encoder(name).apply, collect=collect))
  return functools.partial(run, {"params": random_encoder_params(name)})


def token_ids(*shape, seed=0):
  """Returns random ids from 5 on, so that none is a special token."""
  rng = np.random.default_rng(seed)
  return rng.integers(5, VOCAB_SIZE - 5, shape).astype(np.int32)
