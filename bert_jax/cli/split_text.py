"""Writes any text in BERT's format: a sentence a line, documents apart.

  python -m bert_jax.cli.split_text --input docstrings --output text.txt

Not needed before `prepare`, which splits by itself; for looking at a text, and
for one that is slow to extract and read more than once.
"""

import os
import sys
from collections.abc import Sequence

from bert_jax import files
from bert_jax.cli import flags_flags as flags
from bert_jax.corpus import sources
from bert_jax.corpus import sources_reading as reading


def _words(sentence: str) -> list[str]:
  """Its words, without those that every tokenizer drops as a whole."""
  return [
    word
    for word in sentence.split()
    if any(c.isprintable() and c != "\ufffd" for c in word)
  ]


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
  if os.path.lexists(output):
    raise ValueError(f"{output} exists; delete it or choose another --output.")
  reading.check_language(language)
  documents = words = 0
  with files.whole(output) as partial:
    with open(partial, "w", encoding="utf-8") as f:
      for document in sources.read_documents(inputs, format, errors, language):
        sentences = [found for s in document if (found := _words(s))]
        if not sentences:
          continue
        f.write("\n" * bool(documents))
        f.writelines(" ".join(sentence) + "\n" for sentence in sentences)
        words += sum(map(len, sentences))
        documents += 1
      f.flush()
      os.fsync(f.fileno())
    if not documents:
      raise ValueError(f"{', '.join(inputs)}: there is no text in it.")
  return documents, words


def main() -> None:
  parser = flags.Parser(
    prog="python -m bert_jax.cli.split_text",
    description="Writes any text in BERT's format: a sentence a line, a blank"
    " line between documents.",
  )
  flags.add_input_flags(parser)
  flags.add_language_flag(parser)
  parser.add_argument("--output", required=True, help="the file to write")
  args = parser.parse_args()
  try:
    documents, words = split_text(
      args.input, args.output, args.format, args.errors, args.language
    )
  except ValueError as e:
    sys.exit(f"error: {e}")
  except OSError as e:
    sys.exit(f"error: {e.filename or args.output}: {e.strerror}.")
  except MemoryError as e:
    sys.exit(f"error: {e or 'too little memory'}; nothing was written.")
  except KeyboardInterrupt:
    sys.exit("stopped; nothing was written.")
  print(f"{args.output}: {documents:,} documents, {words:,} words.")


if __name__ == "__main__":
  main()
