"""Inputs of `prepare`, and the documents that are read from them."""

import json

import pytest

from bert_jax.corpus import sources

BERT_FORMAT = "One here.\nTwo there.\n\nThird document.\n"

WANT = [["One here.", "Two there."], ["Third document."]]


def documents(inputs, **options) -> list[list[str]]:
  if not isinstance(inputs, list):
    inputs = str(inputs)
  return list(sources.read_documents(inputs, **options))


def write(path, content):
  if isinstance(content, str):
    content = content.encode("utf-8")
  path.write_bytes(content)
  return path


def jsonl(*texts: str) -> str:
  return "".join(json.dumps({"id": 1, "text": t}) + "\n" for t in texts)


def zstd(content: bytes) -> bytes:
  zstandard = pytest.importorskip("zstandard")
  half = len(content) // 2
  compress = zstandard.ZstdCompressor().compress
  return compress(content[:half]) + compress(content[half:])


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def made_of(*words: int) -> str:
  """Numbers as words of four letters: any two texts share what is meant."""
  return " ".join(
    "".join(LETTERS[w // 26**i % 26] for i in range(4)) for w in words
  )
