"""Tests the gradient of LSTM layers, which is written by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from tiny_families import fast_jit

from bert_jax.models import lstm


def test_the_gradient_by_hand_equals_the_automatic_gradient():
  """The expected gradient is jax's own gradient of a loop in Python.

  The rows have padding and initial states.
  """
  rng = np.random.default_rng(0)
  draw = lambda *s: jnp.asarray(rng.normal(size=s), jnp.float32)  # noqa: E731
  weights = [lstm.Weights(draw(9, 24), draw(24), draw(6, 4)) for _ in (0, 1)]
  x = draw(2, 3, 6, 5)
  ids = np.array(
    [[[1, 1, 1, 2, 2, 0], [0, 0, 1, 1, 1, 1], [0, 1, 0, 1, 2, 2]]] * 2
  )
  states = draw(2, 3, 6), draw(2, 3, 4)
  loop = lstm.LoopSettings(clip=0.4, dtype=jnp.dtype("float32"), unroll=2)
  weights_of_sum = draw(2, 3, 6, 4), (draw(2, 3, 6), draw(2, 3, 4))

  def run_word_by_word(weights, x, states):
    output_rows, last_states = [], []
    for direction, (kernel, bias, projection) in enumerate(weights):
      for row in range(3):
        c, h = (state[direction, row] for state in states)
        has_begun, outputs = False, []
        for column in range(6):
          sequence_id = int(ids[direction, row, column])
          if (
            sequence_id
            and has_begun
            and sequence_id != int(ids[direction, row, column - 1])
          ):
            c, h = jnp.zeros_like(c), jnp.zeros_like(h)
          if sequence_id:
            has_begun = True
            gates = (
              jnp.concatenate([x[direction, row, column], h]) @ kernel + bias
            )
            i, j, f, o = jnp.split(gates, 4)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(j)
            c = jnp.clip(c, -0.4, 0.4)
            h = (jax.nn.sigmoid(o) * jnp.tanh(c)) @ projection
            h = jnp.clip(h, -0.4, 0.4)
          outputs.append(h if sequence_id else jnp.zeros_like(h))
        output_rows.append(jnp.stack(outputs))
        last_states.append((c, h))
    cells, output = (
      jnp.stack(states_of_rows).reshape(2, 3, -1)
      for states_of_rows in zip(*last_states, strict=True)
    )
    return jnp.stack(output_rows).reshape(2, 3, 6, 4), (cells, output)

  def run_layer(weights, x, states):
    return lstm.run_directions(weights, x, jnp.asarray(ids), states, loop)

  def weighted_sum(run, *args):
    return sum(
      (a * b).sum()
      for a, b in zip(
        jax.tree.leaves(run(*args)),
        jax.tree.leaves(weights_of_sum),
        strict=True,
      )
    )

  actual, expected = (
    fast_jit(
      jax.value_and_grad(lambda *a, run=run: weighted_sum(run, *a), (0, 1, 2))
    )(weights, x, states)
    for run in (run_layer, run_word_by_word)
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5),
    actual,
    expected,
  )


def test_no_gradient_of_the_size_of_the_weights_is_in_the_loop():
  """The gradient of a weight is a sum over all steps.

  One product after the loop computes it, so the loop carries no array that has
  the shape of a weight.
  """
  layer = lstm.Lstm(cell=7, features=5, clip=3.0, dtype=jnp.dtype("float32"))
  x, ids = jnp.ones((2, 6, 5)), jnp.ones((2, 6), jnp.int32)
  shapes = jax.eval_shape(layer.init, jax.random.key(0), x, ids)["params"]
  weights = jax.tree.map(lambda s: jnp.ones(s.shape), nn.unbox(shapes))

  def loss(weights):
    return layer.apply({"params": weights}, x, ids)[0].sum()

  graph = jax.make_jaxpr(jax.grad(loss))(weights)
  scans = [
    equation for equation in graph.eqns if equation.primitive.name == "scan"
  ]
  assert len(scans) == 2
  output_shapes = [
    variable.aval.shape for equation in scans for variable in equation.outvars
  ]
  # The shapes of half a kernel, of the projection and of a kernel.
  assert not [
    shape
    for shape in output_shapes
    if shape[-2:] in ((5, 28), (7, 5), (10, 28))
  ]
