"""Defines DistilBERT's objective: a student learns from its teacher.

The source is Sanh et al. 2019. The loss has three terms: the teacher's
distribution over the pieces (Hinton et al. 2015), masked LM, and the direction
of the teacher's last hidden states.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import heads
from bert_jax.models.encoder import Encoder
from bert_jax.models.layers import gather_positions
from bert_jax.objectives import teaching
from bert_jax.objectives.base import (
  MASKED_KEYS,
  Batch,
  Carry,
  Objective,
  Params,
  Sums,
  check_batch,
  check_choice,
  check_segments,
  check_temperature,
  classification_sums,
  dropout_rngs,
  sum_by_chunks,
)

# A student of 6 layers begins with these layers of a teacher of 12 layers.
# Layer 0 is the lowest (huggingface/transformers
# research_projects/distillation/scripts/extract_distilbert.py).
TEACHER_LAYERS = (0, 2, 4, 7, 9, 11)
# The values of the option `kl_tokens`.
KL_TOKENS = ("all", "masked")
KEYS = ("sequence_ids", *MASKED_KEYS)
# The number of positions of a row whose logits are in memory at once. For 256
# rows the logits, float32 [256, 32, 30522], are 1 GB for the student, and 1 GB
# for the teacher.
CHUNK_POSITIONS = 32
# A function (hidden states, optional positions) -> logits: `masked_lm_logits`,
# bound to a module and its parameters.
Decoder = Callable[..., Array]


def masked_lm_logits(
  module: Any,
  hidden: Float[Array, "b l d"],
  positions: Int[Array, "b m"] | None = None,
) -> Float[Array, "b m v"]:
  """Returns the float32 logits of a module's masked-LM head.

  Args:
    module: a `heads.ForPreTraining`.
    hidden: the last hidden states of the module's encoder.
    positions: the positions to predict; None means all positions.
  """
  if positions is None:
    row_positions = jnp.arange(hidden.shape[1])
    positions = jnp.broadcast_to(row_positions, hidden.shape[:2])
  return module.mlm(hidden, positions, module.encoder.word_embedding)


def kl_divergence(
  student_logits: Float[Array, "*n v"],
  teacher_logits: Float[Array, "*n v"],
  temperature: float,
) -> Float[Array, "*n"]:
  """Returns KL(teacher || student) of softmax(logits / temperature).

  The divergence is float32, in nats, and exactly 0 for equal logits.

  Args:
    student_logits: the student's logits.
    teacher_logits: the teacher's logits.
    temperature: the temperature of both softmaxes.
  """
  probabilities = jax.nn.softmax(teacher_logits / temperature)
  # Subtract before dividing: an entry that pads the vocabulary has the lowest
  # float32 as both logits, and their difference must be exactly 0.
  mean_difference = (
    probabilities * ((teacher_logits - student_logits) / temperature)
  ).sum(-1)
  log_sum_exp = functools.partial(jax.nn.logsumexp, axis=-1)
  return (
    mean_difference
    + log_sum_exp(student_logits / temperature)
    - log_sum_exp(teacher_logits / temperature)
  )


def kl_sum(
  decode_student: Decoder,
  decode_teacher: Decoder,
  hidden: tuple[Float[Array, "b l d"], Float[Array, "b l d"]],
  weights: Float[Array, "b l"],
  temperature: float,
) -> Float[Array, ""]:
  """Returns the weighted sum of `kl_divergence`.

  The sum is computed in chunks; see `base.sum_by_chunks`.

  Args:
    decode_student: turns the student's hidden states into logits.
    decode_teacher: turns the teacher's hidden states into logits.
    hidden: the hidden states of the student and of the teacher.
    weights: the weight of each position.
    temperature: the temperature of both softmaxes.
  """

  def sum_chunk(
    student_hidden: Array, teacher_hidden: Array, weights: Array
  ) -> Array:
    divergences = kl_divergence(
      decode_student(student_hidden),
      decode_teacher(teacher_hidden),
      temperature,
    )
    return (divergences * weights).sum()

  chunk_size = min(CHUNK_POSITIONS, weights.shape[1])
  return sum_by_chunks(sum_chunk, chunk_size, *hidden, weights)


def cosine_distance(
  a: Float[Array, "*n d"], b: Float[Array, "*n d"]
) -> Float[Array, "*n"]:
  """Returns 1 - cosine of each pair of vectors, in float32.

  As in torch, 1e-12 is added to the squared norms.
  """
  a, b = a.astype(jnp.float32), b.astype(jnp.float32)
  squared_norms = ((a * a).sum(-1) + 1e-12) * ((b * b).sum(-1) + 1e-12)
  return 1.0 - (a * b).sum(-1) * jax.lax.rsqrt(squared_norms)


def sum_divisors(batch: Batch, kl_tokens: str) -> Sums:
  """Returns each sum's divisor: the number of masked tokens or of real tokens.

  Args:
    batch: the batch.
    kl_tokens: see `build`.
  """
  num_masked = batch["mlm_weights"].sum(dtype=jnp.float32)
  num_real = (batch["sequence_ids"] > 0).sum(dtype=jnp.float32)
  divisors = {
    "mlm_loss": num_masked,
    "mlm_accuracy": num_masked,
    "cosine_loss": num_real,
  }
  return divisors | {"kl_loss": num_real if kl_tokens == "all" else num_masked}


def distillation_sums(
  decode_student: Decoder,
  decode_teacher: Decoder,
  hidden: tuple[Float[Array, "b l d"], Float[Array, "b l d"]],
  batch: Batch,
  temperature: float,
  kl_tokens: str,
) -> Sums:
  """Returns the sums of the three losses and of `mlm_accuracy`.

  Args:
    decode_student: turns the student's hidden states into logits.
    decode_teacher: turns the teacher's hidden states into logits.
    hidden: the last hidden states of the student and of the teacher.
    batch: a batch with `KEYS`.
    temperature: see `build`.
    kl_tokens: see `build`.
  """
  positions, ids, mask_weights = (batch[key] for key in MASKED_KEYS)
  token_weights = (batch["sequence_ids"] > 0).astype(jnp.float32)
  sums = classification_sums(
    "mlm", decode_student(hidden[0], positions), ids, mask_weights
  )
  sums["cosine_loss"] = (cosine_distance(*hidden) * token_weights).sum()
  weights = token_weights
  if kl_tokens == "masked":
    student_hidden, teacher_hidden = hidden
    hidden = (
      gather_positions(student_hidden, positions),
      gather_positions(teacher_hidden, positions),
    )
    weights = mask_weights
  kl_loss = kl_sum(decode_student, decode_teacher, hidden, weights, temperature)
  return sums | {"kl_loss": kl_loss * temperature**2}


def check_options(
  temperature: float,
  kl_tokens: str,
  freeze_positions: bool,
  layers: Sequence[int],
) -> None:
  """Raises ValueError if an option of `build` is out of its range."""
  check_temperature(temperature)
  check_choice("kl_tokens", kl_tokens, KL_TOKENS)
  if freeze_positions and not layers:
    raise ValueError(
      "objective.freeze_positions=True keeps the teacher's position embeddings,"
      " but with objective.layers=() the student does not begin with them; set"
      " --config.objective.freeze_positions=False."
    )


def make_coefficients(kl: float, mlm: float, cosine: float) -> dict[str, float]:
  """Returns {name of a loss: weight} for the losses whose weight is not 0.

  Args:
    kl: the weight of `kl_loss`.
    mlm: the weight of `mlm_loss`.
    cosine: the weight of `cosine_loss`.

  Raises:
    ValueError: all weights are 0.
  """
  teaching.check_weights(kl_weight=kl, mlm_weight=mlm, cosine_weight=cosine)
  weight_by_loss = {"kl_loss": kl, "mlm_loss": mlm, "cosine_loss": cosine}
  return {name: weight for name, weight in weight_by_loss.items() if weight}


def count_flops(
  student: Encoder,
  teacher: Encoder,
  batch: Batch,
  kl_tokens: str,
  trains_kl: bool,
) -> float:
  """Counts the floating-point operations of a training step.

  The student's forward pass counts 3 times, the teacher's once.

  Args:
    student: the student's encoder.
    teacher: the teacher's encoder.
    batch: arrays or shapes.
    kl_tokens: see `build`.
    trains_kl: True if the KL divergence needs a gradient.
  """
  num_rows, length = batch["input_ids"].shape
  num_masked = batch["mlm_positions"].shape[1]
  num_compared = length if kl_tokens == "all" else num_masked
  logit_flops = heads.head_flops(
    student.hidden, student.hidden, student.vocab_size, num_rows, num_compared
  )
  comparison_flops = logit_flops * (3 if trains_kl else 1)
  flops_without_teacher = (
    3 * heads.flops(student, num_rows, length, num_masked) + comparison_flops
  )
  return flops_without_teacher + heads.flops(
    teacher, num_rows, length, num_compared
  )


def build(
  model: dict[str, Any],
  teacher: dict[str, Any],
  layers: Sequence[int] = TEACHER_LAYERS,
  kl_weight: float = 5.0,
  mlm_weight: float = 2.0,
  cosine_weight: float = 1.0,
  temperature: float = 2.0,
  kl_tokens: str = "all",
  freeze_positions: bool = True,
) -> Objective:
  """Builds DistilBERT's distillation in pre-training, with three losses.

  `kl_loss` is the mean of KL(teacher || student) at the temperature over the
  tokens of `kl_tokens`, times the temperature's square. `mlm_loss` is the loss
  of masked LM. `cosine_loss` is the mean over real tokens of 1 - cosine of the
  student's and the teacher's last hidden states. A loss with weight 0 is
  reported too. The teacher has no dropout.

  Args:
    model: keyword arguments of the student's `build`, and `family`.
    teacher: keyword arguments of the teacher's `build`, and `family`.
    layers: the indices of the teacher's layers with which the student begins.
      The student then also begins with the teacher's embeddings and masked-LM
      head. With layers=(), all parameters of the student are drawn from the
      seed.
    kl_weight: the weight of `kl_loss` (research_projects/distillation/
      README.md, --alpha_ce 5.0).
    mlm_weight: the weight of `mlm_loss` (README.md, --alpha_mlm 2.0).
    cosine_weight: the weight of `cosine_loss` (README.md, --alpha_cos 1.0).
    temperature: the temperature of both softmaxes in `kl_loss` (README.md,
      --temperature 2).
    kl_tokens: "all" compares the distributions at all tokens except padding,
      "masked" only at the masked tokens (distiller.py, restrict_ce_to_mask).
    freeze_positions: True keeps the teacher's position embeddings (README.md,
      --freeze_pos_embs). A run then refuses weight decay, which would shrink
      the position embeddings.

  Raises:
    ValueError: teacher and student do not fit, or an option is out of its
      range.
  """
  encoders = teaching.make_encoders("distil", model, teacher)
  teaching.check_sizes(*encoders, layers)
  check_options(temperature, kl_tokens, freeze_positions, layers)
  student, teacher_module = (
    heads.ForPreTraining(encoder, pairs=False) for encoder in encoders
  )

  def init(rng: Array, batch: Batch) -> Params:
    check_batch("distil", batch, KEYS)
    check_segments(batch, student.encoder.num_segments)
    return student.init(rng, batch)["params"]

  def init_teacher(rng: Array, batch: Batch) -> Params:
    return teacher_module.init(rng, batch)["params"]

  def inherit(params: Params, teacher_params: Params) -> Params:
    return teaching.copy_layers(params, teacher_params, layers)

  def loss(
    params: Params,
    teacher_params: Params,
    carry: Carry,
    batch: Batch,
    rng: Array,
    train: bool,
  ) -> tuple[Sums, Carry]:
    rngs = dropout_rngs(rng, train)
    if freeze_positions:
      params = teaching.freeze_position_table(params)
    variables: dict[str, Any] = {"params": params}
    teacher_variables: dict[str, Any] = {
      "params": jax.lax.stop_gradient(teacher_params)
    }
    hidden: Any = student.apply(
      variables, batch, train, rngs=rngs, method=teaching.last_hidden_states
    )
    teacher_hidden: Any = teacher_module.apply(
      teacher_variables, batch, method=teaching.last_hidden_states
    )
    decode_student: Any = functools.partial(
      student.apply, variables, method=masked_lm_logits
    )
    decode_teacher: Any = functools.partial(
      teacher_module.apply, teacher_variables, method=masked_lm_logits
    )
    sums = distillation_sums(
      decode_student,
      decode_teacher,
      (hidden, teacher_hidden),
      batch,
      temperature,
      kl_tokens,
    )
    return sums, carry

  return Objective(
    init=init,
    divisors=functools.partial(sum_divisors, kl_tokens=kl_tokens),
    loss=loss,
    coefficients=make_coefficients(kl_weight, mlm_weight, cosine_weight),
    flops=functools.partial(
      count_flops, *encoders, kl_tokens=kl_tokens, trains_kl=kl_weight > 0
    ),
    init_teacher=init_teacher,
    inherit=inherit if layers else None,
  )
