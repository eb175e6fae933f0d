"""TinyBERT's general distillation: inner states (Jiao et al. 2020, 3.1).

Layer m of a student of M layers learns from layer g(m) = m N / M of a teacher
of N, its embeddings from the teacher's (g(0) = 0): 3m for 4 layers and 2m for 6
of BERT-base (section 4.2; huawei-noah/Pretrained-Language-Model TinyBERT
general_distill.py, layers_per_block).
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bert_jax.models import attention, layers, tinybert
from bert_jax.models.encoder import encode, stack_flops
from bert_jax.objectives import teaching
from bert_jax.objectives.base import (
  MASKED_KEYS,
  Batch,
  Objective,
  Sums,
  check_batch,
  check_choice,
  check_segments,
  dropout_rngs,
)
from bert_jax.objectives.electra import write_ids

KEYS = ("sequence_ids", *MASKED_KEYS)
# A score at or below it counts as 0: the released way to leave out masked keys,
# whose scores have -10,000 added (general_distill.py).
MASKED = -100.0


def attention_scores(
  weights: Any, x: Float[Array, "b l d"], dtype: jnp.dtype
) -> Float[Array, "b h l l"]:
  """A layer's float32 scores before mask and softmax, scaled.

  Args:
    weights: parameters of the layer's attention.
    x: the layer's input.
    dtype: dtype of the projections.
  """
  query, key = (
    layers.product(x, weights[name]["kernel"], 1, dtype)
    + weights[name]["bias"].astype(dtype)
    for name in ("query", "key")
  )
  scores = layers.float32_einsum("bqhk,bshk->bhqs", query, key)
  return scores * (1.0 / math.sqrt(query.shape[-1]))


def attention_sum(
  student: tuple[Any, Float[Array, "n b l d"]],
  teacher: tuple[Any, Float[Array, "n b l w"]],
  pairs: Bool[Array, "b 1 l l"],
  dtypes: tuple[jnp.dtype, jnp.dtype],
) -> Float[Array, ""]:
  """Squared differences of scores at `pairs`, a head, summed over layers.

  The scores of one layer are there at once; the backward pass makes them again.

  Args:
    student: the weights of its layers, stacked, and their inputs.
    teacher: the same for the layers that it learns from.
    pairs: True for a query and a key that count.
    dtypes: dtypes of the student and of the teacher.
  """

  def add(total, layer):
    scores = [
      attention_scores(*weights_and_input, dtype)
      for weights_and_input, dtype in zip(layer, dtypes, strict=True)
    ]
    learnt, wanted = (jnp.where(x <= MASKED, 0.0, x) for x in scores)
    gap = jnp.where(pairs, jnp.square(learnt - wanted), 0.0)
    return total + gap.sum() / learnt.shape[1], None

  total, _ = jax.lax.scan(
    jax.checkpoint(add, prevent_cse=False),
    jnp.zeros((), jnp.float32),
    (student, teacher),
  )
  return total


def state_sums(
  student: Float[Array, "n b l w"],
  teacher: Float[Array, "n b l w"],
  real: Float[Array, "b l"],
) -> Sums:
  """Mean squared differences of the real tokens' states, summed.

  The first of both are the embeddings, the others add up over the layers.
  """
  gap = student.astype(jnp.float32) - teacher.astype(jnp.float32)
  sums = (jnp.square(gap).mean(-1) * real).sum((1, 2))
  return {"embedding_loss": sums[0], "hidden_loss": sums[1:].sum()}


def counted(batch: Batch) -> tuple[Bool[Array, "b 1 l l"], Float[Array, "b l"]]:
  """Returns pairs of tokens that see each other, and tokens; no padding."""
  ids = batch["sequence_ids"]
  pairs = attention.attention_mask(ids) & (ids > 0)[:, None, :, None]
  return pairs, (ids > 0).astype(jnp.float32)


def count_targets(batch: Batch) -> Sums:
  """Weights of the terms."""
  pairs, real = counted(batch)
  tokens = real.sum()
  return {
    "attention_loss": pairs.sum(dtype=jnp.float32),
    "hidden_loss": tokens,
    "embedding_loss": tokens,
  }


def count_flops(student: Any, teacher: Any, batch: Batch) -> float:
  """Operations of a step: the student's three times, the teacher's once.

  Args:
    student: the student's encoder.
    teacher: the teacher's encoder.
    batch: arrays or shapes.
  """
  rows, length = batch["input_ids"].shape
  mapped = rows * length * (student.num_layers + 1)
  trained = stack_flops(student, rows, length)
  trained += 2.0 * mapped * student.hidden * teacher.hidden
  return 3 * trained + stack_flops(teacher, rows, length)


def restored(batch: Batch) -> Int[Array, "b l"]:
  """The ids with the masked tokens put back."""
  return write_ids(batch["input_ids"], *(batch[key] for key in MASKED_KEYS))


def _attention(encoder: Any, times: int) -> Any:
  """Attention's weights of layer `times`, 2 `times`, ... (1 is the first)."""
  weights = encoder["layers"]["layer"]["attention"]
  return jax.tree.map(lambda x: x[times - 1 :: times], weights)


def _check_equal(student: Any, teacher: Any, name: str) -> None:
  value, wanted = getattr(student, name), getattr(teacher, name)
  if value != wanted:
    raise ValueError(
      f"model.{name}={value}, but the teacher's is {wanted}, and both must be"
      f" equal; set --config.model.{name}={wanted}."
    )


def check_vocabulary(student: Any, teacher: Any) -> None:
  """Raises ValueError unless student and teacher read the same ids."""
  for name in ("vocab_size", "padding_id"):
    if hasattr(student, name):
      _check_equal(student, teacher, name)


def check_sizes(student: Any, teacher: Any) -> int:
  """Returns N / M.

  Raises:
    ValueError: heads, vocabularies or numbers of layers do not fit.
  """
  _check_equal(student, teacher, "heads")
  check_vocabulary(student, teacher)
  times, remainder = divmod(teacher.num_layers, student.num_layers)
  if remainder or not times:
    total = teacher.num_layers
    fitting = [str(n) for n in range(1, total + 1) if total % n == 0]
    raise ValueError(
      f"model.num_layers={student.num_layers} does not divide the teacher's"
      f" {total} layers; choose one of {', '.join(fitting)}."
    )
  return times


def make_module(
  student: Any, teacher: Any, maps: str
) -> tinybert.ForDistillation:
  """A student's encoder with the maps to its teacher's width.

  Raises:
    ValueError: they do not fit, or an unknown map.
  """
  check_sizes(student, teacher)
  check_choice("maps", maps, tinybert.MAPS)
  return tinybert.ForDistillation(student, teacher.hidden, maps)


def init_encoder(encoder: Any, rng: Array, batch: Batch) -> dict[str, Any]:
  """{"encoder": parameters} of a teacher of which only the encoder is used."""
  init = functools.partial(encoder.init, rng)
  return {"encoder": encode(init, batch)["params"]}


def layer_sums(
  student: tuple[tinybert.ForDistillation, Any],
  teacher: tuple[Any, Any],
  batch: Batch,
  rng: Array,
  train: bool,
) -> Sums:
  """The three sums of a batch whose weights are those of `count_targets`.

  Args:
    student: the module of `make_module` and its parameters.
    teacher: the encoder and its parameters, which get no gradient.
    batch: see `heads.ForPreTraining`; no token is masked.
    rng: key of the student's dropout.
    train: apply dropout.
  """
  (module, params), (master, frozen) = student, teacher
  encoder = module.encoder
  times = check_sizes(encoder, master)
  rngs = dropout_rngs(rng, train)
  states, mapped = module.apply(
    {"params": params}, batch, train=train, rngs=rngs
  )
  frozen = jax.lax.stop_gradient(frozen)
  run = functools.partial(master.apply, {"params": frozen})
  target = tinybert.collect(run, batch)
  learnt = _attention(params["encoder"], 1), states[:-1]
  wanted = _attention(frozen, times), target[:-1][times - 1 :: times]
  pairs, real = counted(batch)
  sums = state_sums(mapped, target[::times], real)
  total = attention_sum(learnt, wanted, pairs, (encoder.dtype, master.dtype))
  return sums | {"attention_loss": total}


def build(
  model: dict[str, Any],
  teacher: dict[str, Any],
  maps: str = "shared",
  attention_weight: float = 1.0,
  hidden_weight: float = 1.0,
  embedding_weight: float = 1.0,
) -> Objective:
  """Mean squared differences of attention scores, hidden states, embeddings.

  Each is a mean over what is no padding, a layer: `attention_loss` over heads
  and pairs of tokens, `hidden_loss` and `embedding_loss` over tokens and the
  teacher's width. Those of the layers add up. The released program takes means
  over padding as well; without padding both are the same.

  No token is hidden, as released (pregenerate_training_data.py,
  --masked_lm_prob 0.0): what the data's builder masked is put back.

  Args:
    model: keyword arguments of the student's `build`, with `family`.
    teacher: the same for the teacher.
    maps: see `tinybert.ForDistillation`.
    attention_weight: weight of `attention_loss` (all three are 1 in
      general_distill.py).
    hidden_weight: weight of `hidden_loss`.
    embedding_weight: weight of `embedding_loss`.

  Raises:
    ValueError: teacher and student do not fit, an unknown map, all weights 0.
  """
  teaching.check_weights(
    attention_weight=attention_weight,
    hidden_weight=hidden_weight,
    embedding_weight=embedding_weight,
  )
  encoder, master = teaching.make_encoders("tinybert", model, teacher)
  module = make_module(encoder, master, maps)

  def init(rng, batch):
    check_batch("tinybert", batch, KEYS)
    check_segments(batch, encoder.num_segments)
    return module.init(rng, batch)["params"]

  def loss(params, frozen, carry, batch, rng, train):
    batch = batch | {"input_ids": restored(batch)}
    other = master, frozen["encoder"]
    return layer_sums((module, params), other, batch, rng, train), carry

  coefficients = {
    "attention_loss": attention_weight,
    "hidden_loss": hidden_weight,
    "embedding_loss": embedding_weight,
  }
  flops = functools.partial(count_flops, encoder, master)
  return Objective(
    init=init,
    weights=count_targets,
    loss=loss,
    coefficients=coefficients,
    flops=flops,
    init_frozen=functools.partial(init_encoder, master),
  )
