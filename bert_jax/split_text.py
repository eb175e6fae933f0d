"""Writes any text in BERT's format: a sentence a line, documents apart.

  python -m bert_jax.split_text --input docstrings --output text.txt

Not needed before `prepare`, which splits by itself; for looking at a text, and
for one that is slow to extract and read more than once.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from bert_jax.data import reading, sources


def split_text(
  inputs: Sequence[str], output: str, format: str, errors: str, language: str
) -> tuple[int, int]:
  """Writes the file in one piece or not at all.

  Args are those of `sources.read_documents`.

  Returns:
    The numbers of documents and of words.

  Raises:
    ValueError: bad input, or no text in it.
  """
  if os.path.isdir(output):
    raise ValueError(f"{output} is a folder; name a file.")
  documents = words = 0
  partial = output + ".partial"
  try:
    with open(partial, "w", encoding="utf-8") as f:
      for document in sources.read_documents(inputs, format, errors, language):
        f.write("\n" * bool(documents))
        for sentence in document:
          words += len(sentence.split())
          f.write(" ".join(sentence.split()) + "\n")
        documents += 1
      f.flush()
      os.fsync(f.fileno())
    if not documents:
      raise ValueError(f"{', '.join(inputs)}: there is no text in it.")
    os.replace(partial, output)
  finally:
    if os.path.exists(partial):
      os.remove(partial)
  return documents, words


def main() -> None:
  parser = argparse.ArgumentParser(
    prog="python -m bert_jax.split_text",
    description="Writes any text in BERT's format: a sentence a line, a blank"
    " line between documents.",
  )
  parser.add_argument(
    "--input",
    nargs="+",
    required=True,
    metavar="GLOB",
    help="files, tfds:NAME[:SPLIT] or docstrings; several are allowed",
  )
  parser.add_argument("--output", required=True, help="the file to write")
  parser.add_argument(
    "--format",
    choices=("auto", *reading.FORMATS),
    default="auto",
    help="auto (default) goes by the extension",
  )
  parser.add_argument(
    "--errors",
    choices=("strict", "replace"),
    default="strict",
    help="what to do with bytes that are not UTF-8",
  )
  parser.add_argument(
    "--language",
    default="en",
    help="ISO 639 code, for finding sentences (default %(default)s)",
  )
  args = parser.parse_args()
  try:
    documents, words = split_text(
      args.input, args.output, args.format, args.errors, args.language
    )
  except ValueError as e:
    sys.exit(f"error: {e}")
  except OSError as e:
    sys.exit(f"error: {e.filename or args.output}: {e.strerror}.")
  print(f"{args.output}: {documents:,} documents, {words:,} words.")


if __name__ == "__main__":
  main()
