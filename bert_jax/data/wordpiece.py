"""WordPiece as in BERT, by Hugging Face's rules or the original ones.

"huggingface": the rules of `BertTokenizerFast`, with which published
vocabularies are used today. Control, format, private and unassigned characters
are dropped, accents are stripped together with lower-casing, Chinese characters
and punctuation stand alone, a word of more than 100 characters is `[UNK]`.

"original": `tokenization.py` of github.com/google-research/bert. It keeps
private and unassigned characters, lower-cases as Python does, and its limit is
200 characters. Slower, since it runs in Python; see docs/tokenizers.md for
every difference.
"""

import functools
import re
from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from bert_jax.data import corpus, original_rules
from bert_jax.data.tokenizer import WORDS, Vocabulary, mark

CONTINUATION = "##"
MAX_WORD_CHARS = {"huggingface": 100, "original": 200}
RULES = tuple(MAX_WORD_CHARS)
# What a capital sigma becomes depends on the punctuation around it.
_ORIGINAL_WORDS = re.compile("[^ ]+")


def normalizer(lower_case: bool) -> normalizers.Normalizer:
  """Returns BERT's clean-up of raw text, shared with `train_vocab`."""
  return normalizers.BertNormalizer(
    clean_text=True,
    handle_chinese_chars=True,
    strip_accents=lower_case,
    lowercase=lower_case,
  )


def build(
  pieces: Sequence[str],
  lower_case: bool = True,
  source: str = "vocabulary",
  rules: str = "huggingface",
) -> Vocabulary:
  """Builds the tokenizer.

  Args:
    pieces: from `corpus.read_vocab`, for example.
    lower_case: True for an uncased vocabulary.
    source: where the pieces come from, for messages.
    rules: one of `RULES`.

  Raises:
    ValueError: a special token is missing, `rules` is unknown, or `lower_case`
      is asked of a cased vocabulary, most of whose words it could never
      produce.
  """
  if rules not in RULES:
    raise ValueError(f"rules {rules!r}: not one of {list(RULES)}.")
  pieces = list(pieces)
  special = corpus.special_ids(pieces, source)
  if lower_case:
    check_uncased(pieces, source)
  tokenizer = Tokenizer(
    models.WordPiece(
      {piece: i for i, piece in enumerate(pieces)},
      unk_token="[UNK]",
      max_input_chars_per_word=MAX_WORD_CHARS[rules],
      continuing_subword_prefix=CONTINUATION,
    )
  )
  if rules == "huggingface":
    tokenizer.normalizer = normalizer(lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    clean, atoms, ascii = None, WORDS, str.lower if lower_case else str
  else:
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    clean = functools.partial(original_rules.clean, lower_case=lower_case)
    atoms, ascii = _ORIGINAL_WORDS, None
  tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION, cleanup=False)
  return Vocabulary(
    kind="wordpiece",
    pieces=pieces,
    special=special,
    plain=tokenizer,
    marked=mark(tokenizer, corpus.SPECIAL_TOKENS),
    boundary=np.array([not p.startswith(CONTINUATION) for p in pieces]),
    options=dict(lower_case=lower_case, rules=rules),
    files={"vocab.txt": "".join(f"{p}\n" for p in pieces).encode("utf-8")},
    atoms=atoms,
    ascii=ascii,
    clean=clean,
  )


def check_uncased(pieces: Sequence[str], source: str) -> None:
  """Raises ValueError if over 1% of the pieces have capitals."""
  words = [p for p in pieces if not (p.startswith("[") and p.endswith("]"))]
  cased = [p for p in words if p != p.lower()]
  if len(cased) > 0.01 * len(words):
    raise ValueError(
      f"{source}: a cased vocabulary ({len(cased)} pieces with capitals, such"
      f" as {cased[0]!r}) cannot be used with lower-casing; pass"
      " --no-lower-case (lower_case=False)."
    )
