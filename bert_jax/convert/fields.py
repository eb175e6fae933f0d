"""Fields of a published config, with the sentence for what is wrong."""

import numbers
from collections.abc import Mapping
from typing import Any


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

  def number(self, field: str) -> float:
    """A number from 0; ValueError if it is another."""
    value = self.value(field)
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not value >= 0:
      raise self.refuse(field, "it must be a number from 0")
    return value
