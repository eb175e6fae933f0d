"""An LSTM layer with a projection, as ELMo has it."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

State = tuple[Float[Array, "b c"], Float[Array, "b p"]]


class Lstm(nn.Module):
  """One layer and direction (TensorFlow's LSTMCell with num_proj).

  Gates in the order input, candidate, forget, output; 1 is added to the forget
  gate; cell and projected output are clipped.

  Attributes:
    cell: number of cells.
    features: width of the projected output.
    clip: bound of cells and outputs.
    dtype: of the products; the state is float32.
    unroll: steps of time that a loop iteration holds.
  """

  cell: int
  features: int
  clip: float
  dtype: jnp.dtype
  unroll: int = 1

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "b l d"],
    sequence_ids: Int[Array, "b l"],
    state: State | None = None,
    *,
    reverse: bool = False,
  ) -> tuple[Float[Array, "b l p"], State]:
    """Runs over the words of each sequence, from its end if `reverse`.

    A sequence begins with a state of zeros, wherever it stands in its row: no
    padding and no neighbour changes it.

    Args:
      x: words.
      sequence_ids: 0 at padding, 1, 2, ... for the sequences of a row.
      state: cells and output with which the first sequence of each row begins,
        for text that goes on from row to row; zeros if None.
      reverse: from the last word to the first.

    Returns:
      The outputs, 0 at padding, and the state after the last word.
    """
    width = x.shape[-1]
    axes = nn.with_logical_partitioning
    # What TensorFlow gives a variable without an initializer, as here.
    glorot = nn.initializers.glorot_uniform()
    # One variable, as published: rules a variable see the layer as a whole.
    kernel = self.param(
      "kernel",
      axes(glorot, ("embed", "mlp")),
      (width + self.features, 4 * self.cell),
      jnp.float32,
    )
    zeros = nn.initializers.zeros_init()
    bias = self.param("bias", axes(zeros, ("mlp",)), (4 * self.cell,))
    projection = self.param(
      "projection",
      axes(glorot, ("mlp", "embed")),
      (self.cell, self.features),
      jnp.float32,
    ).astype(self.dtype)
    kernel = kernel.astype(self.dtype)
    # Of all words at once, outside of the loop.
    inputs = x.astype(self.dtype) @ kernel[:width] + bias.astype(self.dtype)
    if state is None:
      rows = x.shape[0]
      state = jnp.zeros((rows, self.cell)), jnp.zeros((rows, self.features))

    def step(state, now):
      inputs, fresh, real = now
      cells, output = (jnp.where(fresh[:, None], 0.0, s) for s in state)
      gates = inputs + output.astype(self.dtype) @ kernel[width:]
      i, j, f, o = jnp.split(gates.astype(jnp.float32), 4, axis=-1)
      cells = jax.nn.sigmoid(f + 1.0) * cells + jax.nn.sigmoid(i) * jnp.tanh(j)
      cells = jnp.clip(cells, -self.clip, self.clip)
      made = jax.nn.sigmoid(o) * jnp.tanh(cells)
      made = (made.astype(self.dtype) @ projection).astype(jnp.float32)
      made = jnp.clip(made, -self.clip, self.clip)
      # Padding passes the state on: it may stand before or after the words.
      kept = jnp.where(real[:, None], made, output)
      cells = jnp.where(real[:, None], cells, state[0])
      return (cells, kept), jnp.where(real[:, None], made, 0.0)

    real = sequence_ids != 0
    over_time = (inputs, _begins(sequence_ids, reverse), real)
    state, outputs = jax.lax.scan(
      step,
      state,
      jax.tree.map(lambda a: a.swapaxes(0, 1), over_time),
      reverse=reverse,
      unroll=self.unroll,
    )
    return outputs.swapaxes(0, 1).astype(self.dtype), state


def _begins(
  sequence_ids: Int[Array, "b l"], reverse: bool
) -> Bool[Array, "b l"]:
  """True at the first word, in reading order, of all sequences but the first.

  The first one of a row begins with the state that is passed in.
  """
  ids = sequence_ids[:, ::-1] if reverse else sequence_ids
  before = ids[:, :-1]
  later = jnp.cumsum(before != 0, axis=1) > 0
  begins = (ids[:, 1:] != before) & (ids[:, 1:] != 0) & later
  begins = jnp.pad(begins, ((0, 0), (1, 0)))
  return begins[:, ::-1] if reverse else begins
