"""LSTM layers with a projection, as ELMo has them."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bert_jax.kernels import fused

# Cells and projected output of one direction.
State = tuple[Float[Array, "b c"], Float[Array, "b p"]]
# The same for several directions.
States = tuple[Float[Array, "w b c"], Float[Array, "w b p"]]


class Weights(NamedTuple):
  """The float32 parameters of a layer and direction.

  Attributes:
    kernel: [d + p, 4 c]: rows for the input, then for the previous output.
    bias: [4 c].
    projection: [c, p].
  """

  kernel: Float[Array, "q g"]
  bias: Float[Array, "g"]
  projection: Float[Array, "c p"]


class Loop(NamedTuple):
  """Static settings of a loop over time; the attributes are those of `Lstm`."""

  clip: float
  dtype: jnp.dtype
  unroll: int


class Lstm(nn.Module):
  """One layer and direction (TensorFlow's LSTMCell with num_proj).

  Gates in the order input, candidate, forget, output; 1 is added to the forget
  gate; cell and projected output are clipped.

  Attributes:
    cell: number of cells.
    features: width of the projected output.
    clip: bound of cells and outputs.
    dtype: dtype of the products; the state is float32.
    unroll: steps of time in an iteration of the loop; 0 for all.
  """

  cell: int
  features: int
  clip: float
  dtype: jnp.dtype
  unroll: int = 1

  @nn.compact
  def weights(self, width: int) -> Weights:
    """Returns the parameters for words of this width."""
    axes = nn.with_logical_partitioning
    # TensorFlow's default initializer, as the published program gives none.
    glorot = nn.initializers.glorot_uniform()
    zeros = nn.initializers.zeros_init()
    # One variable, as published, so that an optimizer's rules for a variable
    # see the layer as a whole.
    kernel = self.param(
      "kernel",
      axes(glorot, ("embed", "mlp")),
      (width + self.features, 4 * self.cell),
      jnp.float32,
    )
    bias = self.param("bias", axes(zeros, ("mlp",)), (4 * self.cell,))
    projection = self.param(
      "projection",
      axes(glorot, ("mlp", "embed")),
      (self.cell, self.features),
      jnp.float32,
    )
    return Weights(kernel=kernel, bias=bias, projection=projection)

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
    if reverse:
      x, sequence_ids = x[:, ::-1], sequence_ids[:, ::-1]
    before = None if state is None else tuple(s[None] for s in state)
    outputs, (cells, output) = run(
      [self.weights(x.shape[-1])],
      x[None],
      sequence_ids[None],
      before,
      Loop(clip=self.clip, dtype=self.dtype, unroll=self.unroll),
    )
    outputs = outputs[0, :, ::-1] if reverse else outputs[0]
    return outputs, (cells[0], output[0])


def run(
  weights: Sequence[Weights],
  x: Float[Array, "w b l d"],
  sequence_ids: Int[Array, "w b l"],
  states: States | None,
  loop: Loop,
) -> tuple[Float[Array, "w b l p"], States]:
  """Runs layers of equal sizes in one loop, each over its own rows.

  Args:
    weights: the parameters of each layer.
    x: words, in the order in which they are read.
    sequence_ids: see `Lstm.__call__`.
    states: see `Lstm.__call__`.
    loop: clip, dtype and unrolling of the loop.

  Returns:
    The outputs, 0 at padding, and the states after the last word.
  """
  kernel = jnp.stack([w.kernel for w in weights])
  bias = jnp.stack([w.bias for w in weights])
  projection = jnp.stack([w.projection for w in weights])
  width, dtype = x.shape[-1], loop.dtype
  # The products with all words are made at once, outside of the loop.
  inputs = jnp.einsum(
    "wbld,wdg->lwbg", x.astype(dtype), kernel[:, :width].astype(dtype)
  )
  inputs = inputs + bias[:, None].astype(dtype)
  if states is None:
    shape = x.shape[:2]
    states = (
      jnp.zeros((*shape, projection.shape[1])),
      jnp.zeros((*shape, projection.shape[2])),
    )
  fresh, real = (
    jnp.moveaxis(flags, -1, 0)[..., None]
    for flags in (_begins(sequence_ids), sequence_ids != 0)
  )
  outputs, states = _recur(
    loop, inputs, kernel[:, width:], projection, states, fresh, real
  )
  return jnp.moveaxis(jnp.where(real, outputs, 0), 0, 2), states


def _begins(sequence_ids: Int[Array, "*b l"]) -> Bool[Array, "*b l"]:
  """True at the first word, in reading order, of all sequences but the first.

  The first one of a row begins with the state that is passed in.
  """
  before, now = sequence_ids[..., :-1], sequence_ids[..., 1:]
  later = jnp.cumsum(before != 0, axis=-1) > 0
  begins = (now != before) & (now != 0) & later
  begins = jnp.pad(begins, [(0, 0)] * (begins.ndim - 1) + [(1, 0)])
  return begins[..., : sequence_ids.shape[-1]]  # There may be no word at all.


def _cell(
  gates: Float[Array, "w b g"], cells: Float[Array, "w b c"], clip: float
) -> States:
  """The cells after a word, and the output before its projection."""
  i, j, f, o = jnp.split(gates.astype(jnp.float32), 4, axis=-1)
  cells = jax.nn.sigmoid(f + 1.0) * cells + jax.nn.sigmoid(i) * jnp.tanh(j)
  cells = jnp.clip(cells, -clip, clip)
  return cells, jax.nn.sigmoid(o) * jnp.tanh(cells)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _recur(loop, inputs, recurrent, projection, states, fresh, real):
  """The loop over time.

  The gradient is written by hand. The automatic one would add to arrays of the
  size of the parameters in every step backwards. Here each step keeps the
  factors of these gradients, and one product over all steps follows.

  Args:
    loop: see `Loop`.
    inputs: [l w b 4c], the words' part of the gates.
    recurrent: [w p 4c] float32.
    projection: [w c p] float32.
    states: the states before the first words.
    fresh: [l w b 1] bool, True where a sequence begins.
    real: [l w b 1] bool, False at padding.

  Returns:
    [l w b p], the output after each word (at padding, the one before it); the
    states.
  """
  return _forward(loop, inputs, recurrent, projection, states, fresh, real)[0]


def _forward(loop, inputs, recurrent, projection, states, fresh, real):
  clip, dtype = loop.clip, loop.dtype
  into, out = recurrent.astype(dtype), projection.astype(dtype)

  def step(states, now):
    inputs, fresh, real = now
    cells, output = (jnp.where(fresh, 0.0, s) for s in states)
    gates = inputs + jnp.einsum("wbp,wpg->wbg", output.astype(dtype), into)
    new, seen = _cell(gates, cells, clip)
    projected = jnp.einsum("wbc,wcp->wbp", seen.astype(dtype), out)
    projected = jnp.clip(projected.astype(jnp.float32), -clip, clip)
    # Padding passes the state on: it may stand before or after the words.
    cells, output = (
      jnp.where(real, new, cells),
      jnp.where(real, projected, output),
    )
    return (cells, output), (gates, cells, output.astype(dtype))

  last, (gates, cells, outputs) = jax.lax.scan(
    step, states, (inputs, fresh, real), unroll=loop.unroll or True
  )
  saved = gates, cells, outputs, recurrent, projection, states, fresh, real
  return (outputs, last), saved


def _backward(loop, saved, gradients):
  clip, dtype, unroll = loop
  gates, cells, outputs, recurrent, projection, states, fresh, real = saved
  into, out = recurrent.astype(dtype), projection.astype(dtype)
  d_outputs, d_last = gradients

  def before(first, rest):
    first = first[None].astype(rest.dtype)
    return jnp.where(fresh, 0, jnp.concatenate([first, rest[:-1]]))

  def step(d_states, now):
    gates, cells, output, d_output, fresh, real = now
    d_cells, d_kept = d_states
    d_kept = d_kept + d_output.astype(jnp.float32)
    inside = jnp.abs(output) < clip
    d_made = jnp.where(real & inside, d_kept, 0.0).astype(dtype)
    d_seen = jnp.einsum("wbp,wcp->wbc", d_made, out).astype(jnp.float32)
    (_, seen), pull = jax.vjp(functools.partial(_cell, clip=clip), gates, cells)
    d_gates, d_before = pull((jnp.where(real, d_cells, 0.0), d_seen))
    d_back = jnp.einsum("wbg,wpg->wbp", d_gates, into).astype(jnp.float32)
    d_states = (
      jnp.where(real, d_before, d_cells),
      jnp.where(real, d_back, d_kept),
    )
    d_states = tuple(jnp.where(fresh, 0.0, d) for d in d_states)
    return d_states, (d_gates, d_made, seen.astype(dtype))

  over_time = (gates, before(states[0], cells), outputs, d_outputs, fresh, real)
  d_states, (d_gates, d_made, seen) = jax.lax.scan(
    step, d_last, over_time, reverse=True, unroll=loop.unroll or True
  )
  product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
  last_outputs = before(states[1], outputs)
  d_recurrent = product("lwbp,lwbg->wpg", last_outputs, d_gates)
  d_projection = product("lwbc,lwbp->wcp", seen, d_made)
  none = fused.no_gradient(fresh), fused.no_gradient(real)
  return d_gates, d_recurrent, d_projection, d_states, *none


_recur.defvjp(_forward, _backward)
