"""Defines TinyBERT's general distillation of inner states.

The source is Jiao et al. 2020, section 3.1. A student has M layers and its
teacher has N layers. Layer m of the student learns from layer g(m) = m N / M of
the teacher. The student's embeddings learn from the teacher's embeddings
(g(0) = 0). With BERT-base as the teacher, g(m) is 3m for a student of 4 layers
and 2m for a student of 6 layers (section 4.2;
huawei-noah/Pretrained-Language-Model TinyBERT general_distill.py,
layers_per_block).
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bert_jax.models import attention, layers, primitives, tinybert
from bert_jax.models.encoder import Encoder, encode, stack_flops
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
  dropout_rngs,
)
from bert_jax.objectives.electra import write_ids

KEYS = ("sequence_ids", *MASKED_KEYS)
# A score at or below this number counts as 0. The released program does this to
# leave out masked keys, because it has added -10,000 to their scores
# (general_distill.py).
MASKED_SCORE = -100.0


def attention_scores(
  attention_params: Params, x: Float[Array, "b l d"], dtype: jnp.dtype
) -> Float[Array, "b h l l"]:
  """Returns a layer's scaled float32 scores, before the mask and the softmax.

  Args:
    attention_params: the parameters of the layer's attention.
    x: the layer's input.
    dtype: the dtype of the projections.
  """
  query, key = (
    layers.product(
      x, attention_params[name]["kernel"], num_summed_axes=1, dtype=dtype
    )
    + attention_params[name]["bias"].astype(dtype)[None, None]
    for name in ("query", "key")
  )
  scores = primitives.float32_einsum("bqhk,bshk->bhqs", query, key)
  return scores * (1.0 / math.sqrt(query.shape[-1]))


def attention_sum(
  student: tuple[Params, Float[Array, "n b l d"]],
  teacher: tuple[Params, Float[Array, "n b l w"]],
  counts_pair: Bool[Array, "b 1 l l"],
  dtypes: tuple[jnp.dtype, jnp.dtype],
) -> Float[Array, ""]:
  """Sums the squared differences of scores over layers, rows and token pairs.

  Over the heads the mean is taken. The scores of only one layer are in memory
  at once; the backward pass computes them again.

  Args:
    student: the stacked attention parameters of the student's layers, and the
      inputs of the layers.
    teacher: the stacked attention parameters of the teacher's layers from which
      the student learns, and the inputs of these layers.
    counts_pair: True for a pair of query and key whose scores count.
    dtypes: the dtypes of the student and of the teacher.
  """

  def add(total: Array, layer: Any) -> tuple[Array, None]:
    scores = [
      attention_scores(attention_params, x, dtype)
      for (attention_params, x), dtype in zip(layer, dtypes, strict=True)
    ]
    student_scores, teacher_scores = (
      jnp.where(x <= MASKED_SCORE, 0.0, x) for x in scores
    )
    squares = jnp.square(student_scores - teacher_scores)
    counted_squares = jnp.where(counts_pair, squares, 0.0)
    return total + counted_squares.sum() / student_scores.shape[1], None

  total, _ = jax.lax.scan(
    jax.checkpoint(add, prevent_cse=False),
    jnp.zeros((), jnp.float32),
    (student, teacher),
  )
  return total


def state_sums(
  student: Float[Array, "n b l w"],
  teacher: Float[Array, "n b l w"],
  is_real: Float[Array, "b l"],
) -> Sums:
  """Sums the mean squared differences of the real tokens' states.

  Args:
    student: the student's embeddings and the outputs of its layers, mapped to
      the teacher's width.
    teacher: the teacher's embeddings and the outputs of the layers from which
      the student learns.
    is_real: 0 for padding, else 1.

  Returns:
    `embedding_loss`, and `hidden_loss` summed over the layers.
  """
  differences = student.astype(jnp.float32) - teacher.astype(jnp.float32)
  sums = (jnp.square(differences).mean(-1) * is_real[None]).sum((1, 2))
  return {"embedding_loss": sums[0], "hidden_loss": sums[1:].sum()}


def real_pairs_and_tokens(
  batch: Batch,
) -> tuple[Bool[Array, "b 1 l l"], Float[Array, "b l"]]:
  """Returns which tokens see each other, and which tokens are real.

  A pair of tokens that see each other is True, and a real token is 1. Padding
  is False and 0.
  """
  ids = batch["sequence_ids"]
  pairs = attention.attention_mask(ids) & (ids > 0)[:, None, :, None]
  return pairs, (ids > 0).astype(jnp.float32)


def sum_divisors(batch: Batch) -> Sums:
  """Returns each loss's divisor: the number of pairs or of real tokens."""
  pairs, is_real = real_pairs_and_tokens(batch)
  num_tokens = is_real.sum()
  return {
    "attention_loss": pairs.sum(dtype=jnp.float32),
    "hidden_loss": num_tokens,
    "embedding_loss": num_tokens,
  }


def count_flops(student: Encoder, teacher: Encoder, batch: Batch) -> float:
  """Counts the floating-point operations of a training step.

  The student's forward pass counts 3 times, the teacher's once.

  Args:
    student: the student's encoder.
    teacher: the teacher's encoder.
    batch: arrays or shapes.
  """
  num_rows, length = batch["input_ids"].shape
  num_mapped = num_rows * length * (student.num_layers + 1)
  student_flops = stack_flops(student, num_rows, length)
  student_flops += 2.0 * num_mapped * student.hidden * teacher.hidden
  return 3 * student_flops + stack_flops(teacher, num_rows, length)


def original_ids(batch: Batch) -> Int[Array, "b l"]:
  """Returns `input_ids` with the original tokens at the masked positions."""
  return write_ids(batch["input_ids"], *(batch[key] for key in MASKED_KEYS))


def _attention_params(encoder: Params, step: int) -> Params:
  """Returns the attention parameters of every `step`-th layer of an encoder.

  Layers are counted from 1, so the first returned layer is layer `step`.
  """
  attention_params = encoder["layers"]["layer"]["attention"]
  return jax.tree.map(lambda x: x[step - 1 :: step], attention_params)


def _check_equal(student: Encoder, teacher: Encoder, name: str) -> None:
  size, teacher_size = getattr(student, name), getattr(teacher, name)
  if size != teacher_size:
    raise ValueError(
      f"model.{name}={size}, but the teacher's is {teacher_size}, and both must"
      f" be equal; set --config.model.{name}={teacher_size}."
    )


def check_vocabulary(student: Encoder, teacher: Encoder) -> None:
  """Raises ValueError unless student and teacher read the same ids."""
  for name in ("vocab_size", "padding_id"):
    if hasattr(student, name):
      _check_equal(student, teacher, name)


def check_sizes(student: Encoder, teacher: Encoder) -> int:
  """Returns N / M, the number of teacher layers for each student layer.

  Raises:
    ValueError: heads, vocabularies or numbers of layers do not fit.
  """
  _check_equal(student, teacher, "heads")
  check_vocabulary(student, teacher)
  layer_step, remainder = divmod(teacher.num_layers, student.num_layers)
  if remainder or not layer_step:
    num_teacher_layers = teacher.num_layers
    divisors = [
      str(divisor)
      for divisor in range(1, num_teacher_layers + 1)
      if num_teacher_layers % divisor == 0
    ]
    raise ValueError(
      f"model.num_layers={student.num_layers} does not divide the teacher's"
      f" {num_teacher_layers} layers; choose one of {', '.join(divisors)}."
    )
  return layer_step


def make_module(
  student: Encoder, teacher: Encoder, maps: str
) -> tinybert.ForDistillation:
  """Builds a student's encoder with the maps to its teacher's width.

  Args:
    student: the student's encoder.
    teacher: the teacher's encoder.
    maps: see `tinybert.ForDistillation`.

  Raises:
    ValueError: the sizes do not fit, or `maps` is unknown.
  """
  check_sizes(student, teacher)
  check_choice("maps", maps, tinybert.MAPS)
  return tinybert.ForDistillation(student, teacher.hidden, maps)


def init_teacher_encoder(encoder: Encoder, rng: Array, batch: Batch) -> Params:
  """Returns {"encoder": parameters} of a teacher without heads."""
  init = functools.partial(encoder.init, rng)
  return {"encoder": encode(init, batch)["params"]}


def layer_sums(
  student: tuple[tinybert.ForDistillation, Params],
  teacher: tuple[Encoder, Params],
  batch: Batch,
  rng: Array,
  train: bool,
) -> Sums:
  """Returns the sums of the three losses; see `sum_divisors` and `build`.

  Args:
    student: the module of `make_module`, and its parameters.
    teacher: the teacher's encoder and its parameters, which get no gradient.
    batch: see `heads.ForPreTraining`; no token may be masked.
    rng: the key of the student's dropout.
    train: True applies the student's dropout.
  """
  (module, params), (teacher_encoder, teacher_params) = student, teacher
  encoder = module.encoder
  layer_step = check_sizes(encoder, teacher_encoder)
  rngs = dropout_rngs(rng, train)
  outputs: Any = module.apply({"params": params}, batch, train=train, rngs=rngs)
  states, mapped_states = outputs
  teacher_params = jax.lax.stop_gradient(teacher_params)
  apply_teacher = functools.partial(
    teacher_encoder.apply, {"params": teacher_params}
  )
  teacher_states = tinybert.layer_states(apply_teacher, batch)
  student_layers = _attention_params(params["encoder"], step=1), states[:-1]
  teacher_layers = (
    _attention_params(teacher_params, layer_step),
    teacher_states[:-1][layer_step - 1 :: layer_step],
  )
  pairs, is_real = real_pairs_and_tokens(batch)
  sums = state_sums(mapped_states, teacher_states[::layer_step], is_real)
  attention_loss = attention_sum(
    student_layers,
    teacher_layers,
    pairs,
    (encoder.dtype, teacher_encoder.dtype),
  )
  return sums | {"attention_loss": attention_loss}


def build(
  model: dict[str, Any],
  teacher: dict[str, Any],
  maps: str = "shared",
  attention_weight: float = 1.0,
  hidden_weight: float = 1.0,
  embedding_weight: float = 1.0,
) -> Objective:
  """Builds the distillation of attention scores, hidden states, embeddings.

  Each loss is a mean squared difference: `attention_loss` over heads and pairs
  of tokens, `hidden_loss` and `embedding_loss` over tokens and the teacher's
  width. The means of the layers are added. Padding does not count here, but it
  counts in the released program. For rows without padding, both programs give
  equal losses.

  No token is masked, as in the released program (pregenerate_training_data.py,
  --masked_lm_prob 0.0). If the data have masks, the original tokens are put
  back.

  Args:
    model: keyword arguments of the student's `build`, and `family`.
    teacher: keyword arguments of the teacher's `build`, and `family`.
    maps: see `tinybert.ForDistillation`.
    attention_weight: the weight of `attention_loss` (all three weights are 1 in
      general_distill.py).
    hidden_weight: the weight of `hidden_loss`.
    embedding_weight: the weight of `embedding_loss`.

  Raises:
    ValueError: teacher and student do not fit, `maps` is unknown, or all
      weights are 0.
  """
  teaching.check_weights(
    attention_weight=attention_weight,
    hidden_weight=hidden_weight,
    embedding_weight=embedding_weight,
  )
  encoder, teacher_encoder = teaching.make_encoders("tinybert", model, teacher)
  module = make_module(encoder, teacher_encoder, maps)

  def init(rng: Array, batch: Batch) -> Params:
    check_batch("tinybert", batch, KEYS)
    check_segments(batch, encoder.num_segments)
    return module.init(rng, batch)["params"]

  def loss(
    params: Params,
    teacher_params: Params,
    carry: Carry,
    batch: Batch,
    rng: Array,
    train: bool,
  ) -> tuple[Sums, Carry]:
    batch = batch | {"input_ids": original_ids(batch)}
    teacher = teacher_encoder, teacher_params["encoder"]
    return layer_sums((module, params), teacher, batch, rng, train), carry

  coefficients = {
    "attention_loss": attention_weight,
    "hidden_loss": hidden_weight,
    "embedding_loss": embedding_weight,
  }
  flops = functools.partial(count_flops, encoder, teacher_encoder)
  return Objective(
    init=init,
    divisors=sum_divisors,
    loss=loss,
    coefficients=coefficients,
    flops=flops,
    init_teacher=functools.partial(init_teacher_encoder, teacher_encoder),
  )
