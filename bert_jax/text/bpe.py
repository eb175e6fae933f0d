"""Builds two kinds of byte-pair encoding: byte-level BPE and GPT-1's BPE.

The smallest pieces of byte-level BPE (GPT-2, RoBERTa) are the 256 bytes, so
decoding gives back exactly what was encoded (Radford et al. 2019, section 2.2;
openai/gpt-2 encoder.py). GPT-1's BPE marks the end of each word
(openai/finetune-transformer-lm text_utils.py). Text for GPT-1 is cleaned like
text for BERT; transformers does so if spaCy is not installed.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import (
  AddedToken,
  Tokenizer,
  decoders,
  models,
  normalizers,
  pre_tokenizers,
  processors,
)

from bert_jax.messages import UserError
from bert_jax.text.vocabulary import WORD_PATTERN as BERT_WORD_PATTERN
from bert_jax.text.vocabulary import SpecialIds, Vocabulary, copy_that_reads

# Role -> special token, in the published vocabularies. The roles are the fields
# of `SpecialIds`. GPT-2 and GPT-1 do not have all roles. RoBERTa's special
# tokens come from fairseq data/dictionary.py and gpt2_bpe.
ROBERTA_TOKENS = dict(
  cls="<s>", pad="<pad>", sep="</s>", unk="<unk>", mask="<mask>"
)
GPT2_TOKENS = dict(
  cls="<|endoftext|>", sep="<|endoftext|>", pad="<|endoftext|>"
)
GPT1_TOKENS = dict(unk="<unk>")
END_OF_WORD = "</w>"
# Patterns for `Vocabulary.chunk_pattern`. A space between two words belongs to
# the second word. _ASCII_CHUNK_PATTERN cuts ASCII as encoder.py of GPT-2 does.
# But it does not cut before a character that is not ASCII, because this
# character could belong to the word before it.
_ASCII_CHUNK_PATTERN = re.compile(
  r"(?>'(?:[stmd]|re|ve|ll)| ?[A-Za-z]+| ?[0-9]+| ?[!-/:-@\[-`{-~]+)(?![^ -~])"
  r"| ?[^ ]+"
)
SPACE_WORD_PATTERN = re.compile(" ?[^ ]+")
# Matches in a text with several spaces side by side, or with a space at its
# end. This text is not cut, because only the last of several spaces belongs to
# the next word.
_UNCUT_PATTERN = re.compile(r"\s(?:\s|\Z)")
# The letter that stands for a space: byte-level BPE spells each byte as one
# printable letter.
SPACE_LETTER = "Ġ"


def build_bytelevel(
  vocab: Mapping[str, int],
  merges: Sequence[tuple[str, str]],
  source: str = "vocabulary",
  add_prefix_space: bool = False,
) -> Vocabulary:
  """Builds a byte-level BPE tokenizer.

  If `vocab` has a `<mask>`, the special tokens are RoBERTa's, else GPT-2's.

  Args:
    vocab: piece -> id.
    merges: pairs of pieces in the order in which they were learnt.
    source: the file of the vocabulary, for messages.
    add_prefix_space: True if the first word of a text gets a space before it,
      like every later word.

  Raises:
    UserError: a byte, a special token or an id is missing, or a merge has a
      piece that is not in `vocab`.
  """
  pieces = pieces_by_id(vocab, source)
  missing_letters = [
    piece for piece in pre_tokenizers.ByteLevel.alphabet() if piece not in vocab
  ]
  if missing_letters:
    raise UserError(
      f"{source} is not a byte-level BPE: {len(missing_letters)} of the 256"
      f" bytes are not among its pieces; the first is {min(missing_letters)!r}."
    )
  token_by_role = (
    ROBERTA_TOKENS if ROBERTA_TOKENS["mask"] in vocab else GPT2_TOKENS
  )
  merges = check_merges(merges, vocab, source)
  tokenizer = _bytelevel_tokenizer(vocab, merges, add_prefix_space)
  if token_by_role is ROBERTA_TOKENS:
    # As in the published tokenizer, offsets leave out the space before a word.
    tokenizer.post_processor = processors.ByteLevel(
      add_prefix_space=add_prefix_space, trim_offsets=True
    )
  tokens = [
    token for token in dict.fromkeys(token_by_role.values()) if token in vocab
  ]
  special_tokenizer = copy_that_reads(tokenizer, tokens)
  if token_by_role is ROBERTA_TOKENS:
    # As in the published tokenizer, `<mask>` includes the space before it.
    mask_token = AddedToken(
      token_by_role["mask"], lstrip=True, normalized=False
    )
    special_tokenizer.add_special_tokens([mask_token])
  at_word_boundary = [
    piece.startswith(SPACE_LETTER) or piece in tokens for piece in pieces
  ]
  return Vocabulary(
    algorithm="bytelevel",
    pieces=pieces,
    special=special_ids(vocab, token_by_role, source),
    plain_text_tokenizer=tokenizer,
    special_tokenizer=special_tokenizer,
    at_word_boundary=np.array(at_word_boundary),
    options=dict(add_prefix_space=add_prefix_space),
    files=to_files(vocab, merges),
    **chunk_fields(add_prefix_space),
  )


def _bytelevel_tokenizer(
  vocab: Mapping[str, int],
  merges: Sequence[tuple[str, str]],
  add_prefix_space: bool,
) -> Tokenizer:
  """Builds byte-level BPE with `tokenizers`, without special tokens."""
  tokenizer = Tokenizer(models.BPE(dict(vocab), list(merges)))
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
    add_prefix_space=add_prefix_space
  )
  tokenizer.decoder = decoders.ByteLevel()
  return tokenizer


def chunk_fields(add_prefix_space: bool) -> dict[str, Any]:
  """Returns the fields of `Vocabulary` that say how text becomes chunks."""
  if add_prefix_space:
    # Take whole words, because each chunk gets a space before it.
    return dict(chunk_pattern=SPACE_WORD_PATTERN, uncut_pattern=_UNCUT_PATTERN)
  return dict(
    chunk_pattern=_ASCII_CHUNK_PATTERN,
    uncut_pattern=_UNCUT_PATTERN,
    normalize_ascii=_to_byte_letters,
  )


def _to_byte_letters(word: str) -> str:
  """Spells printable ASCII in the letters that stand for bytes."""
  return word.replace(" ", SPACE_LETTER)


def build_gpt1(
  vocab: Mapping[str, int],
  merges: Sequence[tuple[str, str]],
  source: str = "vocabulary",
) -> Vocabulary:
  """Builds GPT-1's tokenizer: words are those of BERT, and end in `</w>`.

  Args:
    vocab: piece -> id.
    merges: pairs of pieces in the order in which they were learnt.
    source: the file of the vocabulary, for messages.

  Raises:
    UserError: `<unk>` or an id is missing, or a merge has a piece that is not
      in `vocab`.
  """
  pieces = pieces_by_id(vocab, source)
  tokenizer = _gpt1_tokenizer(vocab, check_merges(merges, vocab, source))
  at_word_boundary = [
    piece.endswith(END_OF_WORD) or piece == GPT1_TOKENS["unk"]
    for piece in pieces
  ]
  return Vocabulary(
    algorithm="gpt1",
    pieces=pieces,
    special=special_ids(vocab, GPT1_TOKENS, source),
    plain_text_tokenizer=tokenizer,
    special_tokenizer=copy_that_reads(tokenizer, [GPT1_TOKENS["unk"]]),
    at_word_boundary=np.array(at_word_boundary),
    marks_word_ends=True,
    options={"lower_case": True},
    files=to_files(vocab, merges),
    chunk_pattern=BERT_WORD_PATTERN,
    normalize_ascii=str.lower,
  )


def _gpt1_tokenizer(
  vocab: Mapping[str, int], merges: Sequence[tuple[str, str]]
) -> Tokenizer:
  """Builds GPT-1's BPE with `tokenizers`, without special tokens."""
  tokenizer = Tokenizer(
    models.BPE(
      dict(vocab),
      list(merges),
      unk_token=GPT1_TOKENS["unk"],
      end_of_word_suffix=END_OF_WORD,
    )
  )
  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)
  return tokenizer


def pieces_by_id(vocab: Mapping[str, int], source: str) -> list[str]:
  """Returns the pieces in the order of their ids.

  fairseq puts up to seven fillers before RoBERTa's `<mask>`, which make the
  vocabulary's size a multiple of eight. If `vocab` has no pieces for the ids of
  the fillers, the returned list has them.

  Args:
    vocab: piece -> id.
    source: the file of the vocabulary, for messages.

  Raises:
    UserError: two pieces have the same id, or an id is negative or has no
      piece.
  """
  piece_by_id = {piece_id: piece for piece, piece_id in vocab.items()}
  size = max(piece_by_id, default=-1) + 1
  if len(piece_by_id) != len(vocab) or not piece_by_id or min(piece_by_id) < 0:
    raise UserError(f"{source}: ids must be different and not below 0.")
  mask_id = vocab.get(ROBERTA_TOKENS["mask"], 0)
  filler_ids = [
    piece_id
    for piece_id in range(max(mask_id - 7, 0), mask_id)
    if piece_id not in piece_by_id
  ]
  piece_by_id |= {
    piece_id: f"madeupword{number:04d}"
    for number, piece_id in enumerate(filler_ids)
  }
  if num_missing := size - len(piece_by_id):
    first_missing = next(
      piece_id for piece_id in range(size) if piece_id not in piece_by_id
    )
    raise UserError(
      f"{source}: {num_missing} ids below {size} have no piece, the first is"
      f" {first_missing}; is a piece there twice?"
    )
  return [piece_by_id[piece_id] for piece_id in range(size)]


def check_merges(
  merges: Sequence[tuple[str, str]], vocab: Mapping[str, int], source: str
) -> list[tuple[str, str]]:
  """Checks that the pieces of all merges exist; returns the merges as a list.

  Raises:
    UserError: a piece of a merge is not in the vocabulary.
  """
  for index, (left_piece, right_piece) in enumerate(merges):
    if not (
      left_piece in vocab
      and right_piece in vocab
      and left_piece + right_piece in vocab
    ):
      raise UserError(
        f"{source}: merge {index + 1}, {left_piece!r} and {right_piece!r}, has"
        " pieces that are not in the vocabulary; are both files of one model?"
      )
  return list(merges)


def special_ids(
  vocab: Mapping[str, int], token_by_role: Mapping[str, str], source: str
) -> SpecialIds:
  """Returns the ids of the special tokens.

  Args:
    vocab: piece -> id.
    token_by_role: field of `SpecialIds` -> special token. A field that is
      missing gets the id None.
    source: the file of the vocabulary, for messages.

  Raises:
    UserError: a special token is not in the vocabulary.
  """
  missing_tokens = [
    token for token in token_by_role.values() if token not in vocab
  ]
  if missing_tokens:
    raise UserError(f"{source}: special tokens are missing: {missing_tokens}.")
  return SpecialIds(
    **{
      role: vocab.get(token_by_role.get(role, ""))
      for role in SpecialIds._fields
    }
  )


def read_merges(text: str, source: str) -> list[tuple[str, str]]:
  """Parses `merges.txt`, in which each line is a pair of pieces.

  A first line that begins with `#version` is skipped.

  Args:
    text: the content of the file.
    source: the name of the file, for messages.

  Raises:
    UserError: a line is not a pair; the message has the line's number.
  """
  merges = []
  for line_number, line in enumerate(text.split("\n"), 1):
    if not line.strip() or (line_number == 1 and line.startswith("#version")):
      continue
    pair = line.rstrip("\r").split(" ")
    if len(pair) != 2:
      raise UserError(f"{source}:{line_number}: {line[:40]!r} is not a pair.")
    merges.append((pair[0], pair[1]))
  return merges


def check_ids(vocab: Mapping[str, Any], source: str) -> dict[str, int]:
  """Checks that all ids are integers; returns `vocab` as a dict.

  Args:
    vocab: piece -> id.
    source: the file of the vocabulary, for messages.

  Raises:
    UserError: an id is not an integer.
  """
  if not all(type(piece_id) is int for piece_id in vocab.values()):
    raise UserError(f"{source} is not an object from pieces to ids.")
  return dict(vocab)


def to_files(
  vocab: Mapping[str, int], merges: Sequence[tuple[str, str]]
) -> dict[str, bytes]:
  """Returns name -> content of the files `vocab.json` and `merges.txt`."""
  lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
  return {
    "vocab.json": json.dumps(vocab, ensure_ascii=False).encode("utf-8"),
    "merges.txt": ("\n".join(lines) + "\n").encode("utf-8"),
  }
