"""Writes any text in BERT's format, with a sentence on each line."""

import os
import pathlib
from collections.abc import Sequence

from bert_jax import files
from bert_jax.corpus import sources
from bert_jax.files import PathLike
from bert_jax.messages import Progress, UserError


def split_text(
  inputs: Sequence[str],
  output: PathLike,
  format: str = "auto",
  errors: str = "strict",
  language: str = "en",
) -> tuple[int, int]:
  """Writes a file with a sentence on each line.

  A blank line separates two documents. If there is an error, no file is left.

  Args:
    inputs: see `sources.find_sources`.
    output: the file to write.
    format: see `sources.find_sources`.
    errors: see `sources.find_sources`.
    language: see `sources.split_sentences`.

  Returns:
    The number of documents, and the number of words.

  Raises:
    UserError: the output exists, or the inputs are bad or have no text.
  """
  if pathlib.Path(output).is_dir():
    raise UserError(f"{output} is a folder; name a file.")
  if os.path.lexists(output):
    raise UserError(f"{output} exists; delete it or choose another output.")
  sources.check_language(language)
  num_documents = num_words = 0
  with (
    Progress(f"writing {output}"),
    files.atomic_file(output) as temporary_path,
  ):
    with pathlib.Path(temporary_path).open("w", encoding="utf-8") as file:
      for document in sources.read_documents(inputs, format, errors, language):
        sentences = [_visible_words(sentence) for sentence in document]
        sentences = [sentence for sentence in sentences if sentence]
        if not sentences:
          continue
        file.write("\n" * bool(num_documents))
        file.writelines(" ".join(sentence) + "\n" for sentence in sentences)
        num_words += sum(map(len, sentences))
        num_documents += 1
    if not num_documents:
      raise UserError(f"{', '.join(inputs)}: there is no text in it.")
  return num_documents, num_words


def _visible_words(sentence: str) -> list[str]:
  """Returns the words of a sentence that a tokenizer does not drop."""
  return [
    word
    for word in sentence.split()
    if any(
      character.isprintable() and character != "\ufffd" for character in word
    )
  ]
