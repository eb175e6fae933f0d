"""Builds a tiny vocabulary of each tokenizer, and texts to tokenise."""

import random
import struct

from tokenizers import pre_tokenizers

from bert_jax.text import bpe, wordpiece
from bert_jax.text.vocabulary import SPECIAL_TOKENS

SPECIAL_LIST = list(SPECIAL_TOKENS)

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())

MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "a"), ("a", "n")]


def bert_vocabulary(words, rules="huggingface", lower_case=True):
  return wordpiece.build(
    SPECIAL_LIST + words.split(), lower_case=lower_case, source="v", rules=rules
  )


def roberta_vocabulary(**options):
  pieces = ["<s>", "<pad>", "</s>", "<unk>", *BYTES]
  pieces += [a + b for a, b in MERGES] + ["<mask>"]
  id_of_piece = {piece: i for i, piece in enumerate(pieces)}
  return bpe.build_bytelevel(id_of_piece, MERGES, **options)


def gpt1_vocabulary():
  pieces = ["<unk>", *"abct", "a</w>", "t</w>", "at</w>", "cat</w>", ".</w>"]
  merges = [("a", "t</w>"), ("c", "at</w>")]
  return bpe.build_gpt1({piece: i for i, piece in enumerate(pieces)}, merges)


def random_texts(count, seed=0):
  """Returns random texts that mix scripts, marks, emoji and spaces."""
  rng = random.Random(seed)
  code_points = [*range(0x250), *range(0x300, 0x370), *range(0x5D0, 0x5EB)]
  code_points += [
    *range(0x4E00, 0x4E40),
    *range(0x1F600, 0x1F640),
    0x200D,
    0x2028,
  ]
  code_points += [0xFFFD, 0xE000, 0x378, 0x0, 0xFEFF]

  def word():
    chance = rng.random()
    if chance < 0.5:
      return rng.choice(["the", "a", "an", "Word", "don't", "x" * 150, "  "])
    return "".join(
      chr(rng.choice(code_points)) for _ in range(rng.randrange(6))
    )

  return [
    rng.choice([" ", "", " "]).join(word() for _ in range(rng.randrange(9)))
    for _ in range(count)
  ]


def pieces_and_slices(vocabulary, text, with_special=False):
  """Returns [(piece, slice of the raw text)] of the tokens of a text."""
  (encoded_text,) = vocabulary.encode_offsets([text], with_special)
  pieces = [vocabulary.pieces[i] for i in encoded_text.ids]
  slices = [text[begin:end] for begin, end in encoded_text.offsets]
  return list(zip(pieces, slices, strict=True))


def protobuf_field(number, content):
  """Returns a field of a protocol buffer that holds bytes."""
  size, length_bytes = len(content), b""
  while size > 127:
    length_bytes, size = length_bytes + bytes([size & 127 | 128]), size >> 7
  return bytes([number << 3 | 2]) + length_bytes + bytes([size]) + content


def sentencepiece_model(pieces):
  """Returns the bytes of a `.model` file. A later piece is less likely."""
  model = b""
  for i, piece in enumerate(pieces):
    score = b"\x15" + struct.pack("<f", -float(i))
    model += protobuf_field(
      1, protobuf_field(1, piece.encode()) + score + b"\x18\x01"
    )
  # Field 2 holds the trainer's settings. Its 3rd field, the type of the model,
  # is 1, which means unigram.
  return (
    model
    + protobuf_field(2, protobuf_field(1, b"text.txt") + b"\x18\x01")
    + protobuf_field(3, b"")
  )


ALBERT_PIECES = [
  "<pad>",
  "<unk>",
  "[CLS]",
  "[SEP]",
  "[MASK]",
  "▁the",
  "▁a",
  "n",
  "▁",
]


def write_files(folder, files):
  folder.mkdir(exist_ok=True)
  for name, content in files.items():
    (folder / name).write_bytes(content)
  return str(folder)
