"""DistilBERT's objective: a student learns from its teacher (Sanh et al. 2019).

Three terms: the teacher's distribution over the pieces (Hinton et al. 2015),
masked LM, and the direction of the teacher's last hidden states.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.models import heads
from bert_jax.models.layers import gather_positions
from bert_jax.objectives import teaching
from bert_jax.objectives.base import (
  MASKED_KEYS,
  Batch,
  Objective,
  Sums,
  check_batch,
  check_choice,
  check_segments,
  check_temperature,
  classification_sums,
  dropout_rngs,
  sum_by_parts,
)

# The layers of a teacher of 12 that a student begins with (huggingface/
# transformers research_projects/distillation/scripts/extract_distilbert.py).
LAYERS = (0, 2, 4, 7, 9, 11)
TOKENS = ("all", "masked")
KEYS = ("sequence_ids", *MASKED_KEYS)
# Number of positions of a row whose logits are made at once, the student's and
# the teacher's: float32 [256, 32, 30522] are 1 GB each.
POSITIONS = 32
Reader = Callable[..., Array]


def predict(
  module: nn.Module,
  hidden: Float[Array, "b l d"],
  positions: Int[Array, "b m"] | None = None,
) -> Float[Array, "b m v"]:
  """Float32 logits at `positions`, at all if None."""
  if positions is None:
    columns = jnp.arange(hidden.shape[1])
    positions = jnp.broadcast_to(columns, hidden.shape[:2])
  return module.mlm(hidden, positions, module.encoder.word_embedding)


def divergence(
  student: Float[Array, "*n v"],
  teacher: Float[Array, "*n v"],
  temperature: float,
) -> Float[Array, "*n"]:
  """KL(teacher || student) of softmax(logits / temperature), nats, float32.

  Exactly 0 for equal logits.
  """
  chances = jax.nn.softmax(teacher / temperature)
  # Divided last: both are the lowest float32 in rows beyond the vocabulary.
  gap = (chances * ((teacher - student) / temperature)).sum(-1)
  normal = functools.partial(jax.nn.logsumexp, axis=-1)
  return gap + normal(student / temperature) - normal(teacher / temperature)


def divergence_sum(
  read: Reader,
  read_teacher: Reader,
  hidden: tuple[Float[Array, "b l d"], Float[Array, "b l d"]],
  weights: Float[Array, "b l"],
  temperature: float,
) -> Float[Array, ""]:
  """The weighted sum of `divergence`, `POSITIONS` of each row at a time.

  The backward pass makes a part's logits again.

  Args:
    read: hidden states -> the student's logits.
    read_teacher: hidden states -> the teacher's logits.
    hidden: hidden states of the student and of the teacher.
    weights: weights of the positions.
    temperature: temperature of both softmaxes.
  """

  def sum_of(student, teacher, weights):
    gaps = divergence(read(student), read_teacher(teacher), temperature)
    return (gaps * weights).sum()

  size = min(POSITIONS, weights.shape[1])
  return sum_by_parts(sum_of, size, *hidden, weights)


def cosine_distance(
  a: Float[Array, "*n d"], b: Float[Array, "*n d"]
) -> Float[Array, "*n"]:
  """1 - cosine, in float32; 1e-12 is added to squared norms as by torch."""
  a, b = a.astype(jnp.float32), b.astype(jnp.float32)
  squared = ((a * a).sum(-1) + 1e-12) * ((b * b).sum(-1) + 1e-12)
  return 1.0 - (a * b).sum(-1) * jax.lax.rsqrt(squared)


def count_targets(batch: Batch, kl_tokens: str) -> Sums:
  """Weights of the terms: hidden tokens, or all that are no padding."""
  masked = batch["mlm_weights"].sum(dtype=jnp.float32)
  real = (batch["sequence_ids"] > 0).sum(dtype=jnp.float32)
  weights = {"mlm_loss": masked, "mlm_accuracy": masked, "cosine_loss": real}
  return weights | {"kl_loss": real if kl_tokens == "all" else masked}


def sums_of(
  read: Reader,
  read_teacher: Reader,
  hidden: tuple[Float[Array, "b l d"], Float[Array, "b l d"]],
  batch: Batch,
  temperature: float,
  kl_tokens: str,
) -> Sums:
  """Sums of every term.

  Args:
    read: (hidden states, positions or none) -> the student's logits.
    read_teacher: the same of the teacher.
    hidden: the last of the student and of the teacher.
    batch: with `KEYS`.
    temperature: and `kl_tokens`: see `build`.
  """
  slots, ids, used = (batch[key] for key in MASKED_KEYS)
  real = (batch["sequence_ids"] > 0).astype(jnp.float32)
  sums = classification_sums("mlm", read(hidden[0], slots), ids, used)
  sums["cosine_loss"] = (cosine_distance(*hidden) * real).sum()
  weights = real
  if kl_tokens == "masked":
    hidden = tuple(gather_positions(x, slots) for x in hidden)
    weights = used
  total = divergence_sum(read, read_teacher, hidden, weights, temperature)
  return sums | {"kl_loss": total * temperature**2}


def check_options(
  temperature: float,
  kl_tokens: str,
  freeze_positions: bool,
  layers: Sequence[int],
) -> None:
  """Raises ValueError at an option of `build` that is out of its range."""
  check_temperature(temperature)
  check_choice("kl_tokens", kl_tokens, TOKENS)
  if freeze_positions and not layers:
    raise ValueError(
      "objective.freeze_positions=True keeps the teacher's, which a student has"
      " not with objective.layers=(); set"
      " --config.objective.freeze_positions=False."
    )


def make_coefficients(kl: float, mlm: float, cosine: float) -> dict[str, float]:
  """Those above 0: what counts for nothing needs no gradient.

  Raises:
    ValueError: none is.
  """
  teaching.check_weights(kl_weight=kl, mlm_weight=mlm, cosine_weight=cosine)
  factors = {"kl_loss": kl, "mlm_loss": mlm, "cosine_loss": cosine}
  return {name: factor for name, factor in factors.items() if factor}


def count_flops(
  student: Any, teacher: Any, batch: Batch, kl_tokens: str, learns: bool
) -> float:
  """Operations of a step: the student's three times, the teacher's once.

  Args:
    student: the student's encoder.
    teacher: the teacher's encoder.
    batch: arrays or shapes.
    kl_tokens: see `build`.
    learns: True if the KL divergence needs a gradient.
  """
  rows, length = batch["input_ids"].shape
  masked = batch["mlm_positions"].shape[1]
  read = length if kl_tokens == "all" else masked

  def head(e, decoded):
    return heads.head_flops(e.hidden, e.hidden, e.vocab_size, rows, decoded)

  compared = head(student, read) * (3 if learns else 1)
  total = 3 * heads.flops(student, rows, length, masked) + compared
  return total + heads.flops(teacher, rows, length, read)


def build(
  model: dict[str, Any],
  teacher: dict[str, Any],
  layers: Sequence[int] = LAYERS,
  kl_weight: float = 5.0,
  mlm_weight: float = 2.0,
  cosine_weight: float = 1.0,
  temperature: float = 2.0,
  kl_tokens: str = "all",
  freeze_positions: bool = True,
) -> Objective:
  """Distillation in pre-training: KL, masked LM, cosine.

  `kl_loss` is KL(teacher || student) at the temperature, times its square, a
  token; `cosine_loss` is 1 - cosine of the last hidden states, a token. Every
  term is reported, one of weight 0 too. Padding enters none. The teacher has no
  dropout.

  Args:
    model: keyword arguments of the student's `build`, with `family`.
    teacher: the same for the teacher.
    layers: the teacher's layers that the student begins with, together with its
      embeddings and its masked-LM head; () to begin from the seed.
    kl_weight: weight of `kl_loss` (research_projects/distillation/README.md,
      --alpha_ce 5.0).
    mlm_weight: weight of `mlm_loss` (the same, --alpha_mlm 2.0).
    cosine_weight: weight of `cosine_loss` (the same, --alpha_cos 1.0).
    temperature: temperature of the KL (the same, --temperature 2).
    kl_tokens: "all" tokens except padding, or the "masked" ones
      (distiller.py, restrict_ce_to_mask).
    freeze_positions: keep the teacher's position embeddings as they are (the
      README's commands, --freeze_pos_embs); a run refuses weight decay, which
      would shrink them.

  Raises:
    ValueError: teacher and student do not fit; an option is out of its range.
  """
  encoders = teaching.make_encoders("distil", model, teacher)
  teaching.check_sizes(*encoders, layers)
  check_options(temperature, kl_tokens, freeze_positions, layers)
  student, master = (
    heads.ForPreTraining(encoder, pairs=False) for encoder in encoders
  )

  def init(rng, batch):
    check_batch("distil", batch, KEYS)
    check_segments(batch, student.encoder.num_segments)
    return student.init(rng, batch)["params"]

  def init_frozen(rng, batch):
    return master.init(rng, batch)["params"]

  def inherit(params, frozen):
    return teaching.copy_layers(params, frozen, layers)

  def loss(params, frozen, carry, batch, rng, train):
    rngs = dropout_rngs(rng, train)
    held = teaching.hold_positions(params) if freeze_positions else params
    trained = {"params": held}
    fixed = {"params": jax.lax.stop_gradient(frozen)}
    hidden = student.apply(
      trained, batch, train, rngs=rngs, method=teaching.last_hidden
    )
    target = master.apply(fixed, batch, method=teaching.last_hidden)
    readers = (
      functools.partial(student.apply, trained, method=predict),
      functools.partial(master.apply, fixed, method=predict),
    )
    seen = (hidden, target)
    return sums_of(*readers, seen, batch, temperature, kl_tokens), carry

  return Objective(
    init=init,
    weights=functools.partial(count_targets, kl_tokens=kl_tokens),
    loss=loss,
    coefficients=make_coefficients(kl_weight, mlm_weight, cosine_weight),
    flops=functools.partial(
      count_flops, *encoders, kl_tokens=kl_tokens, learns=kl_weight > 0
    ),
    init_frozen=init_frozen,
    inherit=inherit if layers else None,
  )
