"""Compares ELMo's optimizer with a simple version in numpy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.training import optim


@pytest.mark.parametrize("name", ["adagrad", "adagrad_each"])
def test_adagrad_equals_numpy(name):
  """As in allenai/bilm-tf, the optimizer scales gradients by 20 and clips them.

  "adagrad" clips by the norm of all arrays, "adagrad_each" by the norm of each
  array and of each layer of `layers`. Each element is then divided by the root
  of 1 plus the sum of its squares in all steps so far.
  """
  optimizer = optim.optimizer_factory(name)(
    lambda step: 0.2,
    name,
    initial_accumulator=1.0,
    gradient_scale=20.0,
    clip_norm=10.0,
  )
  rng = np.random.default_rng(0)
  shapes = {"a": (3, 2), "layers": {"kernel": (2, 4)}, "b": (5,)}
  is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
  params = jax.tree.map(lambda s: jnp.zeros(s), shapes, is_leaf=is_shape)
  state = optimizer.init(params)
  square_sums = jax.tree.map(lambda p: np.ones(p.shape), params)
  for gradient_size in (0.01, 3.0):
    grads = jax.tree.map(
      lambda p, s=gradient_size: rng.normal(size=p.shape) * s, params
    )
    as_float32 = jax.tree.map(jnp.float32, grads)
    updates, state = optimizer.update(as_float32, state)
    scaled_grads = jax.tree.map(lambda g: g * 20.0, grads)
    if name == "adagrad":
      norm = math.sqrt(sum((g**2).sum() for g in jax.tree.leaves(scaled_grads)))
      clipped_grads = jax.tree.map(
        lambda g, n=norm: g * min(1, 10 / n), scaled_grads
      )
    else:
      clip_by_norm = lambda g: g * min(1, 10 / np.linalg.norm(g))  # noqa: E731
      clipped_grads = {
        path: clip_by_norm(scaled_grads[path]) for path in ("a", "b")
      }
      layers = scaled_grads["layers"]["kernel"]
      clipped_grads["layers"] = {
        "kernel": np.stack([clip_by_norm(layer) for layer in layers])
      }
    square_sums = jax.tree.map(
      lambda a, g: a + g**2, square_sums, clipped_grads
    )
    expected_updates = jax.tree.map(
      lambda g, a: -0.2 * g / np.sqrt(a), clipped_grads, square_sums
    )
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
      updates,
      expected_updates,
    )
  with pytest.raises(ValueError, match="initial_accumulator=0"):
    optim.build_adagrad(
      lambda step: 0.2,
      name,
      initial_accumulator=0.0,
      gradient_scale=1.0,
      clip_norm=10.0,
    )
