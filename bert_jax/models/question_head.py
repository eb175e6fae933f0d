"""ELECTRA's head for questions: the end given the start, and no answer."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bert_jax.models import layers

# Number of starts that are tried, and of ends for each (google-research/electra
# configure_finetuning.py, beam_size).
BEAM = 20
# The width of the two hidden layers, and the number that is subtracted from the
# logits of positions outside of answers (finetune/qa/qa_tasks.py,
# get_prediction_module).
WIDTH, MASKED = 512, 1000.0


class AnswerLogits(NamedTuple):
  """Float32 logits for a known right start.

  Attributes:
    start: [b, l].
    end: [b, l], given that start.
    null: [b], that the question has no answer.
  """

  start: Float[Array, "b l"]
  end: Float[Array, "b l"]
  null: Float[Array, "b"]


class JointAnswers(nn.Module):
  """Logits of a start, of an end given the start, of no answer.

  As google-research/electra finetune/qa/qa_tasks.py has it
  (QATask.get_prediction_module with joint_prediction, answerable_classifier and
  answerable_uses_start_logits, the values of configure_finetuning.py). The end:
  the hidden states at the start and at each position, dense, gelu, linear. No
  answer: those at the first position and the mean over starts by their
  probabilities, dense, gelu, linear. Kernels are drawn as TensorFlow's default
  has them (Glorot uniform).

  Attributes:
    beam: number of starts that are tried, and of ends for each.
    dtype: dtype of the hidden layers' products.
  """

  beam: int
  dtype: jnp.dtype

  def setup(self):
    glorot, float32 = nn.initializers.glorot_uniform(), jnp.dtype("float32")

    def hidden():
      return layers.Dense((WIDTH,), ("embed", None), self.dtype, glorot)

    def linear(axis):
      return layers.Dense((1,), (axis, None), float32, glorot)

    self.start = linear("embed")
    self.end_hidden, self.end = hidden(), linear(None)
    self.null_hidden, self.null = hidden(), linear(None)

  def logits_given_starts(
    self,
    hidden: Float[Array, "b l d"],
    mask: Bool[Array, "b l"],
    starts: Int[Array, "b"],
  ) -> AnswerLogits:
    """Returns the logits for known right starts.

    Args:
      hidden: the encoder's last hidden states.
      mask: True where an answer may begin and end.
      starts: the right starts.
    """
    start = self._starts(hidden, mask)
    end = self._ends(hidden, mask, starts[:, None])[:, 0]
    null = self._null(hidden, start)
    return AnswerLogits(start=start, end=end, null=null)

  def __call__(
    self, hidden: Float[Array, "b l d"], mask: Bool[Array, "b l"]
  ) -> Float[Array, "b s 4"]:
    """The beam's spans: s = 1 + k * k, k the beam or l if that is less.

    Float32 rows (start, end, log probability of the start, that of the end
    given the start), starts from the likeliest on, ends of a start too; places
    are exact in float32. The first row is no span: (0, 0, logit of no answer,
    0).
    """
    count, length = hidden.shape[:2]
    k = min(self.beam, length)
    start = self._starts(hidden, mask)
    first, i = jax.lax.top_k(jax.nn.log_softmax(start), k)
    ends = self._ends(hidden, mask, i)
    second, j = jax.lax.top_k(jax.nn.log_softmax(ends), k)
    parts = jnp.broadcast_arrays(i[..., None], j, first[..., None], second)
    spans = jnp.stack([x.astype(jnp.float32) for x in parts], -1)
    null = self._null(hidden, start)[:, None, None]
    null = jnp.pad(null, [(0, 0), (0, 0), (2, 1)])
    return jnp.concatenate([null, spans.reshape(count, k * k, 4)], 1)

  def _starts(self, hidden: Array, mask: Array) -> Float[Array, "b l"]:
    return _masked(self.start(hidden)[..., 0], mask)

  def _ends(
    self, hidden: Array, mask: Array, starts: Int[Array, "b k"]
  ) -> Float[Array, "b k l"]:
    """Logits of the ends given each of the starts, one start at a time."""
    d = hidden.shape[-1]
    kernel, bias = self.end_hidden.weights((2 * d,))
    last, last_bias = self.end.weights((WIDTH,))
    at = layers.gather_positions(hidden, starts)
    # The product with both states side by side, in its two parts.
    at = layers.product(at, kernel[:d], 1, self.dtype)
    here = layers.product(hidden, kernel[d:], 1, self.dtype)
    here = here + bias.astype(self.dtype)[None, None]

    def of_start(at):
      x = layers.activation("gelu")(at[:, None] + here)
      y = layers.product(x, last, 1, jnp.dtype("float32"))
      y = y + last_bias[None, None]
      return _masked(y[..., 0], mask)

    # Hidden layers [b, k, l, 512] at once would be twenty times an encoder's.
    return jax.lax.map(of_start, at.swapaxes(0, 1)).swapaxes(0, 1)

  def _null(
    self, hidden: Array, start: Float[Array, "b l"]
  ) -> Float[Array, "b"]:
    chances = jax.nn.softmax(start)
    mean = jnp.einsum("bl,bld->bd", chances, hidden.astype(jnp.float32))
    x = jnp.concatenate([hidden[:, 0].astype(jnp.float32), mean], -1)
    x = layers.activation("gelu")(self.null_hidden(x))
    return self.null(x)[..., 0]


def _masked(
  logits: Float[Array, "b l"], mask: Bool[Array, "b l"]
) -> Float[Array, "b l"]:
  return jnp.where(mask, logits, logits - MASKED)
