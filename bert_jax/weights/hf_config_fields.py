"""Fields of a published config, with the sentence for what is wrong."""

import math
import numbers
from collections.abc import Mapping
from typing import Any

# Attribute of the encoder -> the limit of its number; that of the others,
# dropout rates and epsilons, is 1. A padding's depends on the sizes.
LIMITS = {"initializer_range": 100.0, "padding_id": math.inf}


class Fields:
  """Fields of one config; a format may say what an absent one means."""

  def __init__(self, config: Mapping[str, Any], where: str):
    self.config, self.where = config, where

  def refuse(self, field: str, why: str) -> ValueError:
    """The error that a field's value is worth."""
    value = self.config.get(field)
    return ValueError(f"{self.where}: {field} is {value!r}; {why}.")

  def value(self, field: str) -> Any:
    """A field; ValueError if it is absent."""
    if field not in self.config:
      raise ValueError(f"{self.where} has no {field}; write it in.")
    return self.config[field]

  def size(self, field: str) -> int:
    """A whole number from 1; ValueError if it is another."""
    value = self.value(field)
    if type(value) is not int or value < 1:
      raise self.refuse(field, "it must be a whole number from 1")
    return value

  def number(self, field: str, limit: float = 1.0) -> float:
    """A number from 0 to below a limit; ValueError if it is another."""
    value = self.value(field)
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not 0 <= value < limit:
      raise self.refuse(field, f"it must be a number from 0 to below {limit:g}")
    return value
