"""ELECTRA's head for questions: an answer's end depends on its start."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bert_jax.models import layers

# The number of starts to try, and of ends to try for each start
# (google-research/electra configure_finetuning.py, beam_size).
BEAM_SIZE = 20
# The width of the two hidden layers (finetune/qa/qa_tasks.py,
# get_prediction_module).
HIDDEN_WIDTH = 512
# This number is subtracted from the logits of positions where no answer may
# begin or end (get_prediction_module).
PENALTY = 1000.0


class AnswerLogits(NamedTuple):
  """The float32 logits when the right start is known.

  Attributes:
    start_logits: [b, l], for each position as the start.
    end_logits: [b, l], for each position as the end, given the right start.
    no_answer_logits: [b]; a value above 0 means that there is no answer.
  """

  start_logits: Float[Array, "b l"]
  end_logits: Float[Array, "b l"]
  no_answer_logits: Float[Array, "b"]


class JointAnswerHead(nn.Module):
  """Computes logits of an answer's start, of its end, and of no answer.

  The logits of the end depend on the start.

  This is the head of google-research/electra finetune/qa/qa_tasks.py,
  QATask.get_prediction_module, with the values of configure_finetuning.py for
  joint_prediction, answerable_classifier and answerable_uses_start_logits.

    logit      inputs                                      layers
    start      a position's hidden state                   linear
    end        hidden states at the start and a position   dense, gelu, linear
    no answer  hidden state at the first position, and     dense, gelu, linear
               the mean of all hidden states, weighted by
               the starts' probabilities

  Kernels are drawn from TensorFlow's default distribution (Glorot uniform).

  Attributes:
    beam: the number of starts to try, and of ends to try for each start.
    dtype: the dtype of the matrix products in the two hidden layers.
  """

  beam: int
  dtype: jnp.dtype

  def setup(self) -> None:
    """Makes the dense layers."""
    glorot, float32 = nn.initializers.glorot_uniform(), jnp.dtype("float32")

    def hidden_layer() -> layers.Dense:
      return layers.Dense((HIDDEN_WIDTH,), ("embed", None), self.dtype, glorot)

    def linear_layer(axis: str | None) -> layers.Dense:
      return layers.Dense((1,), (axis, None), float32, glorot)

    self.start = linear_layer("embed")
    self.end_hidden, self.end = hidden_layer(), linear_layer(None)
    self.null_hidden, self.null = hidden_layer(), linear_layer(None)

  def logits_given_starts(
    self,
    hidden: Float[Array, "b l d"],
    mask: Bool[Array, "b l"],
    starts: Int[Array, "b"],
  ) -> AnswerLogits:
    """Returns the logits when the right starts are known.

    Args:
      hidden: the encoder's last hidden states.
      mask: True where an answer may begin and end.
      starts: the positions of the right starts.
    """
    start_logits = self._start_logits(hidden, mask)
    end_logits = self._end_logits(hidden, mask, starts[:, None])[:, 0]
    return AnswerLogits(
      start_logits, end_logits, self._no_answer_logits(hidden, start_logits)
    )

  def __call__(
    self, hidden: Float[Array, "b l d"], mask: Bool[Array, "b l"]
  ) -> Float[Array, "b s 4"]:
    """Returns the logit of no answer, and the likeliest spans.

    Args:
      hidden: the encoder's last hidden states.
      mask: True where an answer may begin and end.

    Returns:
      A float32 array [b, s, 4], with s = 1 + k * k entries for each row; k is
      the smaller of `beam` and l. The first entry is (0, 0, logit of no answer,
      0). Each later entry is a span: its start, its end, the log probability of
      the start, and the log probability of the end given the start. The spans
      are sorted by their starts, the likeliest start first. The spans of one
      start are sorted by their ends, the likeliest end first. Float32 holds the
      positions exactly.
    """
    num_rows, length = hidden.shape[:2]
    k = min(self.beam, length)
    start_logits = self._start_logits(hidden, mask)
    start_scores, starts = jax.lax.top_k(jax.nn.log_softmax(start_logits), k)
    end_logits = self._end_logits(hidden, mask, starts)
    end_scores, ends = jax.lax.top_k(jax.nn.log_softmax(end_logits), k)
    columns = jnp.broadcast_arrays(
      starts[..., None], ends, start_scores[..., None], end_scores
    )
    spans = jnp.stack([column.astype(jnp.float32) for column in columns], -1)
    no_answer_entries = self._no_answer_logits(hidden, start_logits)[
      :, None, None
    ]
    no_answer_entries = jnp.pad(no_answer_entries, [(0, 0), (0, 0), (2, 1)])
    return jnp.concatenate(
      [no_answer_entries, spans.reshape(num_rows, k * k, 4)], 1
    )

  def _start_logits(self, hidden: Array, mask: Array) -> Float[Array, "b l"]:
    return _penalise_where_false(self.start(hidden)[..., 0], mask)

  def _end_logits(
    self, hidden: Array, mask: Array, starts: Int[Array, "b k"]
  ) -> Float[Array, "b k l"]:
    """Returns the logits of the ends given each of `starts`."""
    width = hidden.shape[-1]
    kernel, bias = self.end_hidden.kernel_and_bias((2 * width,))
    last_kernel, last_bias = self.end.kernel_and_bias((HIDDEN_WIDTH,))
    start_states = layers.gather_positions(hidden, starts)
    # The input of the dense layer is the start's state joined to a position's
    # state. Multiply each of the two by its half of the kernel, and add the
    # products in `end_logits`.
    start_products = layers.product(
      start_states, kernel[:width], num_summed_axes=1, dtype=self.dtype
    )
    position_products = layers.product(
      hidden, kernel[width:], num_summed_axes=1, dtype=self.dtype
    )
    position_products = position_products + bias.astype(self.dtype)[None, None]

    def end_logits(start_state: Float[Array, "b f"]) -> Float[Array, "b l"]:
      hidden_activations = layers.activation("gelu")(
        start_state[:, None] + position_products
      )
      logits = layers.product(
        hidden_activations,
        last_kernel,
        num_summed_axes=1,
        dtype=jnp.dtype("float32"),
      )
      logits = logits + last_bias[None, None]
      return _penalise_where_false(logits[..., 0], mask)

    # Compute one start at a time: the hidden layer of all starts together,
    # [b, k, l, 512], would be k times as large as that of one start.
    logits = jax.lax.map(end_logits, start_products.swapaxes(0, 1))
    return logits.swapaxes(0, 1)

  def _no_answer_logits(
    self, hidden: Array, start_logits: Float[Array, "b l"]
  ) -> Float[Array, "b"]:
    """Returns the logit of no answer for each row."""
    probabilities = jax.nn.softmax(start_logits)
    mean_state = jnp.einsum(
      "bl,bld->bd", probabilities, hidden.astype(jnp.float32)
    )
    head_inputs = jnp.concatenate(
      [hidden[:, 0].astype(jnp.float32), mean_state], -1
    )
    activations = layers.activation("gelu")(self.null_hidden(head_inputs))
    return self.null(activations)[..., 0]


def _penalise_where_false(
  logits: Float[Array, "b l"], mask: Bool[Array, "b l"]
) -> Float[Array, "b l"]:
  """Subtracts `PENALTY` from the logits where the mask is False."""
  return jnp.where(mask, logits, logits - PENALTY)
