"""Decodes and parses the files of a tokenizer that are already in memory."""

from collections.abc import Mapping
from typing import Any

from etils import epath

from bert_jax.files import PathLike, decode_utf8, parse_json_object


def path_of(folder: PathLike, name: str) -> str:
  """Returns the path of a file in a folder."""
  return str(epath.Path(folder, name))


def decode_file(files: Mapping[str, bytes], folder: PathLike, name: str) -> str:
  """Returns the text of a file.

  Args:
    files: file name -> content.
    folder: the folder of the files, for messages.
    name: the name of the file, one of `files`.

  Raises:
    UserError: the file is not UTF-8.
  """
  return decode_utf8(files[name], path_of(folder, name))


def parse_file(
  files: Mapping[str, bytes], folder: PathLike, name: str
) -> dict[str, Any]:
  """Returns the JSON object that a file holds; {} if there is no such file.

  Args:
    files: file name -> content.
    folder: the folder of the files, for messages.
    name: the name of the file.

  Raises:
    UserError: the file is not a JSON object.
  """
  if name not in files:
    return {}
  return parse_json_object(
    decode_file(files, folder, name), path_of(folder, name)
  )
