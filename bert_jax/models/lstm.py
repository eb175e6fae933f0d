"""Defines ELMo's LSTM layers, whose outputs are projected to a smaller size."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bert_jax.kernels import fused
from bert_jax.models import layers

# The cells and the projected output of one direction.
State = tuple[Float[Array, "b c"], Float[Array, "b p"]]
# The states of w directions.
States = tuple[Float[Array, "w b c"], Float[Array, "w b p"]]


class Weights(NamedTuple):
  """Holds the float32 parameters of one direction of a layer.

  Attributes:
    kernel: [d + p, 4 c]; the first d rows multiply the input, and the other p
      rows multiply the previous output.
    bias: [4 c], added to the gates.
    projection: [c, p], from the cells to the output.
  """

  kernel: Float[Array, "q g"]
  bias: Float[Array, "g"]
  projection: Float[Array, "c p"]


class LoopSettings(NamedTuple):
  """Holds the settings of a loop over time; see the attributes of `Lstm`."""

  clip: float
  dtype: jnp.dtype
  unroll: int


class Lstm(nn.Module):
  """Computes one direction of a layer, as TensorFlow's LSTMCell with num_proj.

  The order of the gates is input, candidate, forget, output. 1 is added to the
  forget gate. The cells and the projected output are clipped.

  Attributes:
    cell: the number of cells.
    features: the width of the projected output.
    clip: the largest absolute value of cells and outputs.
    dtype: the dtype of the matrix products; the state is float32.
    unroll: the number of words in an iteration of the compiled loop; 0 unrolls
      the whole loop.
  """

  cell: int
  features: int
  clip: float
  dtype: jnp.dtype
  unroll: int = 1

  @nn.compact
  def weights(self, width: int) -> Weights:
    """Returns the parameters for input vectors of this width."""
    with_axes = layers.with_axes
    # The published program names no initializer, so this is TensorFlow's
    # default.
    glorot = nn.initializers.glorot_uniform()
    zeros = nn.initializers.zeros_init()
    # As published, one variable holds all gates, so that an optimizer's rules
    # for a variable (a limit of the norm, for example) see the whole layer.
    kernel = self.param(
      "kernel",
      with_axes(glorot, ("embed", "mlp")),
      (width + self.features, 4 * self.cell),
      jnp.float32,
    )
    bias = self.param("bias", with_axes(zeros, ("mlp",)), (4 * self.cell,))
    projection = self.param(
      "projection",
      with_axes(glorot, ("mlp", "embed")),
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
    """Reads the words of each sequence.

    Each sequence begins with a state of zeros, except a row's first sequence if
    `state` is given. The outputs of a sequence depend neither on padding nor on
    the other sequences of the row.

    Args:
      x: the vectors of the words.
      sequence_ids: 0 at padding, 1, 2, ... for the sequences of a row.
      state: the state with which the first sequence of each row begins, if its
        text continues from an earlier batch; None for zeros.
      reverse: True reads from the last word to the first.

    Returns:
      The outputs, which are 0 at padding, and the state after the word that was
      read last.
    """
    if reverse:
      x, sequence_ids = x[:, ::-1], sequence_ids[:, ::-1]
    states = None if state is None else (state[0][None], state[1][None])
    outputs, (cells, output) = run_directions(
      [self.weights(x.shape[-1])],
      x[None],
      sequence_ids[None],
      states,
      LoopSettings(clip=self.clip, dtype=self.dtype, unroll=self.unroll),
    )
    outputs = outputs[0, :, ::-1] if reverse else outputs[0]
    return outputs, (cells[0], output[0])


def run_directions(
  weights: Sequence[Weights],
  x: Float[Array, "w b l d"],
  sequence_ids: Int[Array, "w b l"],
  states: States | None,
  loop: LoopSettings,
) -> tuple[Float[Array, "w b l p"], States]:
  """Runs w directions of equal sizes side by side in one loop.

  Args:
    weights: the parameters of each direction.
    x: the vectors of the words, in the order in which each direction reads
      them.
    sequence_ids: the sequences of each direction's rows; see `Lstm.__call__`.
    states: the states at the beginning; see `Lstm.__call__`.
    loop: the settings of the loop.

  Returns:
    The outputs, which are 0 at padding, and the states after the words that
    were read last.
  """
  kernel = jnp.stack([direction.kernel for direction in weights])
  bias = jnp.stack([direction.bias for direction in weights])
  projection = jnp.stack([direction.projection for direction in weights])
  width, dtype = x.shape[-1], loop.dtype
  # Multiply all words at once, outside of the loop: this part of the gates does
  # not depend on the state.
  inputs = jnp.einsum(
    "wbld,wdg->lwbg", x.astype(dtype), kernel[:, :width].astype(dtype)
  )
  inputs = inputs + bias[None, :, None].astype(dtype)
  if states is None:
    shape = x.shape[:2]
    states = (
      jnp.zeros((*shape, projection.shape[1])),
      jnp.zeros((*shape, projection.shape[2])),
    )
  resets, is_word = (
    jnp.moveaxis(masks, -1, 0)[..., None]
    for masks in (_reset_mask(sequence_ids), sequence_ids != 0)
  )
  outputs, states = _run_loop(
    loop, inputs, kernel[:, width:], projection, states, resets, is_word
  )
  return jnp.moveaxis(jnp.where(is_word, outputs, 0), 0, 2), states


def _reset_mask(sequence_ids: Int[Array, "*b l"]) -> Bool[Array, "*b l"]:
  """Returns True at the words where the state is set to zeros.

  These are the first words, in reading order, of all sequences except each
  row's first sequence, which begins with the state that the caller passes.
  """
  previous_ids, current_ids = sequence_ids[..., :-1], sequence_ids[..., 1:]
  is_after_word = jnp.cumsum(previous_ids != 0, axis=-1) > 0
  is_begin = (current_ids != previous_ids) & (current_ids != 0) & is_after_word
  is_begin = jnp.pad(is_begin, [(0, 0)] * (is_begin.ndim - 1) + [(1, 0)])
  # `jnp.pad` adds a position even to rows of length 0, so cut it off.
  return is_begin[..., : sequence_ids.shape[-1]]


def _update_cells(
  gates: Float[Array, "w b g"], cells: Float[Array, "w b c"], clip: float
) -> States:
  """Returns the cells after a word, and the output before its projection."""
  input_gate, candidate, forget_gate, output_gate = jnp.split(
    gates.astype(jnp.float32), 4, axis=-1
  )
  cells = jax.nn.sigmoid(forget_gate + 1.0) * cells
  cells = cells + jax.nn.sigmoid(input_gate) * jnp.tanh(candidate)
  cells = jnp.clip(cells, -clip, clip)
  return cells, jax.nn.sigmoid(output_gate) * jnp.tanh(cells)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run_loop(
  loop: LoopSettings,
  inputs: Float[Array, "l w b g"],
  recurrent_kernel: Float[Array, "w p g"],
  projection: Float[Array, "w c p"],
  states: States,
  resets: Bool[Array, "l w b 1"],
  is_word: Bool[Array, "l w b 1"],
) -> tuple[Float[Array, "l w b p"], States]:
  """Runs the loop over time.

  The gradient is written by hand, for speed. Automatic differentiation would
  add to an array as large as the parameters in each backward step. Here a
  backward step only saves the two factors of each gradient. After the loop, one
  matrix product over all steps gives the gradient of a parameter.

  Args:
    loop: the settings of the loop.
    inputs: the words times the kernel, plus the bias; g is 4 c.
    recurrent_kernel: the kernel's rows for the previous output, float32.
    projection: the projection, float32.
    states: the states before the first words.
    resets: True at words where the state is set to zeros.
    is_word: True at words, False at padding.

  Returns:
    The output after each word, and the states at the end. The output at padding
    is the last output before the padding.
  """
  result, _ = _forward(
    loop, inputs, recurrent_kernel, projection, states, resets, is_word
  )
  return result


# The arrays that `_forward` saves for `_backward`: gates, cells, outputs,
# recurrent_kernel, projection, states, resets and is_word.
_SavedArrays = tuple[Array, Array, Array, Array, Array, States, Array, Array]


def _forward(
  loop: LoopSettings,
  inputs: Float[Array, "l w b g"],
  recurrent_kernel: Float[Array, "w p g"],
  projection: Float[Array, "w c p"],
  states: States,
  resets: Bool[Array, "l w b 1"],
  is_word: Bool[Array, "l w b 1"],
) -> tuple[tuple[Float[Array, "l w b p"], States], _SavedArrays]:
  """Computes the output of `_run_loop`, and what `_backward` needs."""
  clip, dtype = loop.clip, loop.dtype
  recurrent_kernel_cast = recurrent_kernel.astype(dtype)
  projection_cast = projection.astype(dtype)

  def step(
    states: States, word: tuple[Array, Array, Array]
  ) -> tuple[States, tuple[Array, Array, Array]]:
    inputs, resets, is_word = word
    cells, output = (jnp.where(resets, 0.0, state) for state in states)
    gates = inputs + jnp.einsum(
      "wbp,wpg->wbg", output.astype(dtype), recurrent_kernel_cast
    )
    new_cells, cell_output = _update_cells(gates, cells, clip)
    new_output = jnp.einsum(
      "wbc,wcp->wbp", cell_output.astype(dtype), projection_cast
    )
    new_output = jnp.clip(new_output.astype(jnp.float32), -clip, clip)
    # Padding, which may be before or after the words, keeps the state.
    cells = jnp.where(is_word, new_cells, cells)
    output = jnp.where(is_word, new_output, output)
    return (cells, output), (gates, cells, output.astype(dtype))

  last_states, (gates, cells, outputs) = jax.lax.scan(
    step, states, (inputs, resets, is_word), unroll=loop.unroll or True
  )
  saved = (
    gates,
    cells,
    outputs,
    recurrent_kernel,
    projection,
    states,
    resets,
    is_word,
  )
  return (outputs, last_states), saved


def _backward(
  loop: LoopSettings, saved: _SavedArrays, gradients: tuple[Array, States]
) -> tuple[Array, Array, Array, States, np.ndarray, np.ndarray]:
  """Computes the gradients of the arguments of `_run_loop`.

  A variable `d_x` is the gradient of the array `x`.
  """
  clip, dtype = loop.clip, loop.dtype
  (
    gates,
    cells,
    outputs,
    recurrent_kernel,
    projection,
    states,
    resets,
    is_word,
  ) = saved
  recurrent_kernel_cast = recurrent_kernel.astype(dtype)
  projection_cast = projection.astype(dtype)
  d_outputs, d_last_states = gradients

  def previous(first: Array, arrays: Array) -> Array:
    """Returns for each word the array of the previous word.

    The first word gets `first`, and a word with a reset gets 0.
    """
    first = first[None].astype(arrays.dtype)
    return jnp.where(resets, 0, jnp.concatenate([first, arrays[:-1]]))

  def step(
    d_states: States, word: tuple[Array, ...]
  ) -> tuple[States, tuple[Array, Array, Array]]:
    gates, previous_cells, output, d_output, resets, is_word = word
    d_cells, d_total_output = d_states
    d_total_output = d_total_output + d_output.astype(jnp.float32)
    # A clipped output has no gradient, and neither has an output at padding.
    has_gradient = is_word & (jnp.abs(output) < clip)
    d_new_output = jnp.where(has_gradient, d_total_output, 0.0).astype(dtype)
    d_cell_output = jnp.einsum(
      "wbp,wcp->wbc", d_new_output, projection_cast
    ).astype(jnp.float32)
    (_, cell_output), cell_vjp = jax.vjp(
      functools.partial(_update_cells, clip=clip), gates, previous_cells
    )
    d_gates, d_previous_cells = cell_vjp(
      (jnp.where(is_word, d_cells, 0.0), d_cell_output)
    )
    d_previous_output = jnp.einsum(
      "wbg,wpg->wbp", d_gates, recurrent_kernel_cast
    ).astype(jnp.float32)
    # At padding, the gradients go unchanged to the word before.
    d_previous_cells = jnp.where(is_word, d_previous_cells, d_cells)
    d_previous_output = jnp.where(is_word, d_previous_output, d_total_output)
    d_states = (
      jnp.where(resets, 0.0, d_previous_cells),
      jnp.where(resets, 0.0, d_previous_output),
    )
    return d_states, (d_gates, d_new_output, cell_output.astype(dtype))

  previous_cells = previous(states[0], cells)
  words = (gates, previous_cells, outputs, d_outputs, resets, is_word)
  d_states, (d_gates, d_new_outputs, cell_outputs) = jax.lax.scan(
    step, d_last_states, words, reverse=True, unroll=loop.unroll or True
  )
  product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
  previous_outputs = previous(states[1], outputs)
  d_recurrent_kernel = product("lwbp,lwbg->wpg", previous_outputs, d_gates)
  d_projection = product("lwbc,lwbp->wcp", cell_outputs, d_new_outputs)
  d_flags = fused.zero_cotangent(resets), fused.zero_cotangent(is_word)
  return d_gates, d_recurrent_kernel, d_projection, d_states, *d_flags


_run_loop.defvjp(_forward, _backward)
