"""Writes input files for `prepare`, and reads documents from them."""

import json
import pathlib

import pytest

from bert_jax.corpus import sources

BERT_FORMAT = "One here.\nTwo there.\n\nThird document.\n"

EXPECTED_DOCUMENTS = [["One here.", "Two there."], ["Third document."]]


def read_documents(inputs, **options) -> list[list[str]]:
  if not isinstance(inputs, list):
    inputs = str(inputs)
  return list(sources.read_documents(inputs, **options))


def write_file(path, content):
  if isinstance(content, str):
    content = content.encode("utf-8")
  path.write_bytes(content)
  return path


def jsonl_text(*texts: str) -> str:
  return "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts)


def compress_zstd(content: bytes) -> bytes:
  zstandard = pytest.importorskip("zstandard")
  half = len(content) // 2
  compress = zstandard.ZstdCompressor().compress
  return compress(content[:half]) + compress(content[half:])


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def text_of_words(*word_numbers: int) -> str:
  """Returns a text in which each number is a word of four letters.

  Two texts share only the words of the numbers that both have.
  """
  return " ".join(
    "".join(LETTERS[number // 26**i % 26] for i in range(4))
    for number in word_numbers
  )


def names_in(folder):
  """Returns the sorted names of a folder's files and folders."""
  return sorted(path.name for path in pathlib.Path(folder).iterdir())


def contents_of(folder) -> dict[str, bytes]:
  """Returns name -> content of a folder's files, in the order of the names."""
  paths = sorted(pathlib.Path(folder).iterdir())
  return {path.name: path.read_bytes() for path in paths}
