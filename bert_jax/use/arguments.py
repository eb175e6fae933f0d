"""Checks the arguments of the functions for notebooks, before any slow work.

A wrong argument raises a UserError with one sentence, which names the
parameter. Python takes True for the number 1, but these functions do not accept
a bool as a number.
"""

import math
import numbers
import os
from collections.abc import Collection, Mapping
from typing import Any

from bert_jax.messages import UserError

# The largest count and the largest seed that a config may have; see
# `training.config`.
MAX_COUNT, MAX_SEED = 2**31 - 1, 2**32 - 1


def check_count(
  name: str, value: Any, least: int = 1, most: int = MAX_COUNT
) -> int:
  """Returns a whole number as an int.

  Args:
    name: the parameter.
    value: the argument.
    least: the smallest number that is allowed.
    most: the largest number that is allowed.

  Raises:
    UserError: the argument is not a whole number from `least` to `most`.
  """
  if _is_bool(value) or not isinstance(value, numbers.Integral):
    raise UserError(f"{name}={value!r:.60} must be a whole number.")
  number = int(value)
  if number < least:
    raise UserError(f"{name}={number} must be at least {least}.")
  if number > most:
    raise UserError(f"{name}={number} must be at most {most}.")
  return number


def check_positive(name: str, value: Any) -> float:
  """Returns a number above 0 as a float; raises a UserError if it is not."""
  number = _check_number(name, value)
  if not 0 < number < math.inf:
    raise UserError(f"{name}={value} must be above 0, and finite.")
  return number


def check_share(name: str, value: Any) -> float:
  """Returns a number from 0 to below 1 as a float; else raises a UserError."""
  number = _check_number(name, value)
  if not 0 <= number < 1:
    raise UserError(f"{name}={value} must be at least 0 and below 1.")
  return number


def check_bool(name: str, value: Any) -> None:
  """Raises a UserError if an argument is neither True nor False."""
  if not _is_bool(value):
    raise UserError(f"{name}={value!r:.60} must be True or False.")


def check_name(name: str, value: Any, meaning: str) -> None:
  """Raises a UserError if an argument is not a string, or is empty.

  Args:
    name: the parameter.
    value: the argument.
    meaning: what the string is, for the message, such as "a name".
  """
  if not isinstance(value, str) or not value:
    raise UserError(f"{name}={value!r:.60} must be {meaning}, a string.")


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
  """Raises a UserError if an argument is not one of `choices`."""
  if not isinstance(value, str):
    raise UserError(
      f"{name}={value!r:.60} must be a string, one of {', '.join(choices)}."
    )
  if value not in choices:
    raise UserError(f"{name}={value!r:.60} is not one of {', '.join(choices)}.")


def check_path(name: str, value: Any, meaning: str) -> str:
  """Returns a path as a string, in which a first "~" is the home folder.

  Args:
    name: the parameter.
    value: the argument, a string or an `os.PathLike` of strings.
    meaning: what the path is, for the message, such as "the path of a file".

  Raises:
    UserError: the argument is no path, or is empty.
  """
  path = os.fspath(value) if isinstance(value, os.PathLike) else value
  if not isinstance(path, str) or not path.strip():
    raise UserError(f"{name}={value!r:.60}: pass {meaning}, as a string.")
  if "\0" in path:
    raise UserError(f"{name}={value!r:.60}: a path has no null character.")
  return os.path.expanduser(path)  # noqa: PTH111  # pathlib damages "gs://".


def names_of_given_arguments(arguments: Mapping[str, Any]) -> set[str]:
  """Returns the names of the arguments that are not None."""
  return {name for name, value in arguments.items() if value is not None}


def _check_number(name: str, value: Any) -> float:
  """Returns a number as a float; raises a UserError if it is no number."""
  if _is_bool(value) or not isinstance(value, numbers.Real):
    raise UserError(f"{name}={value!r:.60} must be a number.")
  return float(value)


def _is_bool(value: Any) -> bool:
  # NumPy's bool is no subclass of Python's.
  return type(value).__name__ in ("bool", "bool_")
