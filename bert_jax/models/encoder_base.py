"""What every family's file needs: sizes by name, counts of operations."""

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Int

# What an encoder takes, in this order; all but the first may be missing.
INPUTS = ("input_ids", "segment_ids", "sequence_ids", "position_ids")
Encoder = TypeVar("Encoder", bound=nn.Module)


def build(
  encoder: type[Encoder],
  variants: Mapping[str, Mapping[str, Any]],
  variant: str,
  overrides: Mapping[str, Any],
) -> Encoder:
  """Builds a published size of a family.

  Args:
    encoder: the family's module.
    variants: its published sizes: name -> attributes.
    variant: a key of `variants`.
    overrides: other attributes; `dtype` may be a name.

  Raises:
    ValueError: unknown variant or attribute, the known ones are named; a
      `dtype` that is none of floats.
  """
  if variant not in variants:
    raise ValueError(f"model.variant={variant!r}: not one of {list(variants)}.")
  fields = [f for f in encoder.__dataclass_fields__ if f != "parent"]
  fields.remove("name")
  for name in overrides:
    if name not in fields:
      near = difflib.get_close_matches(name, fields, 1)
      hint = f"did you mean {near[0]!r}?" if near else f"it has {fields}."
      raise ValueError(
        f"model.{name}: {encoder.__name__} has no such attribute; {hint}"
      )
  attributes = {**variants[variant], **overrides}
  if "dtype" in attributes:
    attributes["dtype"] = _dtype(attributes["dtype"])
  return encoder(**attributes)


def _dtype(value: Any) -> jnp.dtype:
  """A dtype or its name; ValueError unless it is one of floats."""
  try:
    dtype = jnp.dtype(value)
  except TypeError:
    dtype = None
  if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
    raise ValueError(f"model.dtype={value!r}: not one of float32, bfloat16.")
  return dtype


def check_heads(hidden: int, heads: int) -> None:
  """Raises ValueError unless the heads split the hidden size evenly."""
  if hidden % heads:
    raise ValueError(f"hidden={hidden} is not a multiple of heads={heads}.")


def default_sequence_ids(
  input_ids: Int[Array, "b l"], sequence_ids: Int[Array, "b l"] | None
) -> Int[Array, "b l"]:
  """Returns `sequence_ids`, or one sequence without padding if None."""
  return jnp.ones_like(input_ids) if sequence_ids is None else sequence_ids


def stack_flops(
  num_layers: int, hidden: int, mlp: int, rows: int, length: int
) -> float:
  """Operations of a stack's forward pass, matrix products only.

  A row costs, in each layer, 2 l (4 d^2 + 2 d f) for the projections and the
  MLP and 4 l^2 d for attention. Shared layers cost as often as they are
  applied.
  """
  d, f = hidden, mlp
  layer = 2 * length * (4 * d * d + 2 * d * f) + 4 * length * length * d
  return float(rows * num_layers * layer)
