"""Defines the tokenizer, which maps text to ids and offsets, and ids to text.

One class serves every kind of tokenizer; it uses the `tokenizers` library,
called "the library" here. The modules that build a `Vocabulary` are
`wordpiece`, `bpe` (byte-level and GPT-1's), `unigram` and `fairseq_pieces`
(SentencePiece models), `words` and `tokenizer_json`. The ids are the ids of
Hugging Face's fast tokenizers, unless a docstring says otherwise.

A chunk is a substring whose ids do not depend on the text around it. Texts are
cut into chunks, and the ids of frequent chunks are cached.
"""

import array
import dataclasses
import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from bert_jax.messages import UserError

# The tokens are in the order of the ids that `bert_jax vocab` gives them.
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The largest number of chunks in the cache. About 10,000 different chunks make
# up 95% of the words of English text.
_MAX_CACHED_CHUNKS = 2**18
# The largest number of characters in a chunk that is cached.
_MAX_CACHED_CHARS = 64
# WHOLE_TEXT_PATTERN, WORD_PATTERN and SPACED_PATTERN are patterns for
# `Vocabulary.chunk_pattern`. With WHOLE_TEXT_PATTERN, the whole text is one
# chunk.
WHOLE_TEXT_PATTERN = re.compile("(?s:.+)")
# WORD_PATTERN is for tokenizers that always cut a text into words at white
# space and punctuation, and at no other place.
WORD_PATTERN = re.compile(r"[^ !-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]")
# SPACED_PATTERN is for tokenizers that cut a text into words only at white
# space. Cleaning may join a space and the mark after the space into one
# character, so this pattern does not separate the two.
SPACED_PATTERN = re.compile(r" *[^ ]+(?: +(?![\w!-~])[^ ]*)*")
# Characters that are no marks, but belong to the character before them like
# marks: vowels and finals of decomposed Korean syllables, joiners, and sound
# marks of half-width kana.
_ATTACHED_PATTERN = re.compile(
  "[\u1160-\u11ff\ud7b0-\ud7ff\u200c\u200d\uff9e\uff9f]"
)
# A rule of cleaning joins a character with at most this many neighbours.
_MAX_RULE_CHARS = 16


class SpecialIds(NamedTuple):
  """Holds the ids of the special tokens; None means that a token is missing."""

  pad: int | None
  unk: int | None
  cls: int | None
  sep: int | None
  mask: int | None


class EncodedText(NamedTuple):
  """Holds the ids of a text, and the characters from which they come.

  Attributes:
    ids: a list [T]; from `characters.Characters`, an int32 array [T, 50].
    offsets: [T] pairs (begin, end) of character positions in the raw text; the
      character at `end` does not belong to the piece.
  """

  ids: Any
  offsets: list[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class AddedTokenFinder:
  """Finds texts that may hold an added token.

  A finder is the `uncut_pattern` of a vocabulary with added tokens.

  Attributes:
    raw_pattern: matches the tokens that are looked for in the raw text; None if
      there are no such tokens.
    normalized_pattern: matches the tokens that are looked for in the normalized
      text; None if there are no such tokens.
    normalizer: normalizes a text; None if texts are not normalized.
    base_pattern: the `uncut_pattern` that the vocabulary would have without
      added tokens.
    normalize_ascii: normalizes printable ASCII five times as fast as
      `normalizer`; None if there is no such function.
  """

  raw_pattern: re.Pattern | None
  normalized_pattern: re.Pattern | None
  normalizer: normalizers.Normalizer | None
  base_pattern: re.Pattern | None = None
  normalize_ascii: Callable[[str], str] | None = None

  def search(self, text: str) -> bool:
    """Returns True if `text` must not be cut into chunks."""
    if self.base_pattern is not None and self.base_pattern.search(text):
      return True
    return self.finds_token(text)

  def finds_token(self, text: str) -> bool:
    """Returns True if `text` may hold an added token."""
    if self.raw_pattern is not None and self.raw_pattern.search(text):
      return True
    if self.normalized_pattern is None:
      return False
    is_ascii = text.isascii() and text.isprintable()
    if self.normalize_ascii is not None and is_ascii:
      text = self.normalize_ascii(text)
    elif self.normalizer is not None:
      text = self.normalizer.normalize_str(replace_surrogates(text))
    return self.normalized_pattern.search(text) is not None


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
  """Maps text to ids and back; it can be pickled.

  Attributes:
    algorithm: "wordpiece", "bytelevel", "gpt1", "unigram" or "words".
    pieces: the V pieces of the vocabulary in the order of their ids.
    special: the ids of the special tokens.
    plain_text_tokenizer: the library's tokenizer, which reads `[SEP]` in a text
      as text.
    special_tokenizer: the library's tokenizer, which reads `[SEP]` in a text as
      the special token.
    at_word_boundary: [V + len(other_words)] bool, True for a piece that begins
      a word. If `marks_word_ends`, True for a piece that ends a word.
    options: the options with which the tokenizer can be built from `files`.
    files: the published files, name -> content.
    marks_word_ends: True if pieces show where words end, and not where they
      begin (GPT-1).
    chunk_pattern: matches the chunks of a text; only spaces are between them.
    uncut_pattern: a text in which this pattern matches is not cut into chunks;
      None if every text may be cut.
    normalize_ascii: maps a chunk of printable ASCII to the one word that the
      model sees; None if the model may see several words.
    clean: maps a raw text to the text that the library sees and, for each of
      its characters, the index of the raw character; None if the library sees
      the raw text.
    other_words: words with ids from V on. Only the algorithm "words" has them.
    ids_around_sentence: the ids that a corpus has before each sentence, and the
      ids that it has after it. Only the algorithm "words" has them.
    added_tokens: the added tokens except the special tokens of the family; see
      `text/added_tokens.py`.
  """

  algorithm: str
  pieces: Sequence[str]
  special: SpecialIds
  plain_text_tokenizer: Tokenizer
  special_tokenizer: Tokenizer
  at_word_boundary: np.ndarray
  options: Mapping[str, Any]
  files: Mapping[str, bytes]
  marks_word_ends: bool = False
  chunk_pattern: re.Pattern = WHOLE_TEXT_PATTERN
  uncut_pattern: re.Pattern | AddedTokenFinder | None = None
  normalize_ascii: Callable[[str], str] | None = None
  clean: Callable[[str], tuple[str, list[int]]] | None = None
  other_words: Sequence[str] = ()
  ids_around_sentence: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
  added_tokens: tuple[AddedToken, ...] = ()
  _caches: list[dict[str, bytes]] = dataclasses.field(
    default_factory=lambda: [{}], repr=False
  )

  @property
  def vocab_size(self) -> int:
    """V, the number of pieces."""
    return len(self.pieces)

  @property
  def num_ids(self) -> int:
    """The number of ids of the pieces and of `other_words` together."""
    return len(self.pieces) + len(self.other_words)

  @property
  def lower_case(self) -> bool:
    """True if the tokenizer changes text to lower case."""
    return bool(self.options.get("lower_case", False))

  @property
  def keep_accents(self) -> bool:
    """True if accents stay; by default they stay if capitals stay."""
    keeps_accents = self.options.get("keep_accents")
    if keeps_accents is None and self.options.get("strip_accents") is not None:
      keeps_accents = not self.options["strip_accents"]
    return not self.lower_case if keeps_accents is None else keeps_accents

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Returns the ids of each text, for corpora.

    No special token is added. A literal `[SEP]` is read as text, so that the
    text of a corpus cannot contain special tokens.
    """
    encoded_texts = self._encode_as_bytes(texts)
    return [
      np.frombuffer(encoded_text, np.int32).tolist()
      for encoded_text in encoded_texts
    ]

  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of `encode_batch` in one array, which is twice as fast.

    Args:
      texts: N texts.

    Returns:
      An int32 array [T] with the ids of all texts, and an int64 array [N] with
      the number of ids of each text.
    """
    encoded_texts = self._encode_as_bytes(texts)
    lengths = np.fromiter(map(len, encoded_texts), np.int64, len(encoded_texts))
    bytes_per_id = np.dtype(np.int32).itemsize
    return np.frombuffer(
      b"".join(encoded_texts), np.int32
    ), lengths // bytes_per_id

  def _encode_as_bytes(self, texts: Sequence[str]) -> list[bytes]:
    """Returns the int32 ids of each text as bytes."""
    if len(self._caches[0]) > _MAX_CACHED_CHUNKS:
      # Do not clear the old cache, because a second thread may be reading it.
      self._caches[0] = {}
    cache = self._caches[0]
    chunks_by_text = [self._chunks(text) for text in texts]
    new_chunks = set(itertools.chain.from_iterable(chunks_by_text)).difference(
      cache
    )
    encoded_chunks = self._encode_chunks(new_chunks)
    uncached_chunks = {
      chunk: encoded_chunks.pop(chunk)
      for chunk in new_chunks
      if len(chunk) > _MAX_CACHED_CHARS
    }
    cache.update(encoded_chunks)
    return [
      _join_ids(text_chunks, cache, uncached_chunks)
      for text_chunks in chunks_by_text
    ]

  def _chunks(self, text: str) -> list[str]:
    """Cuts a text into chunks."""
    if self.uncut_pattern is not None and self.uncut_pattern.search(text):
      return [text]
    return self.chunk_pattern.findall(text)

  def _encode_chunks(self, chunks: Iterable[str]) -> dict[str, bytes]:
    """Returns chunk -> its int32 ids as bytes."""
    complex_chunks: list[str] = []
    ids_by_chunk: dict[str, list[int]] = {}
    model, normalize_ascii = (
      self.plain_text_tokenizer.model,
      self.normalize_ascii,
    )
    finder = self.uncut_pattern
    finds_token = (
      finder.finds_token if isinstance(finder, AddedTokenFinder) else None
    )
    for chunk in chunks:
      # Simple chunks need only the model, which is six times as fast as the
      # whole tokenizer.
      if (
        normalize_ascii is not None
        and is_simple_chunk(chunk)
        and not (finds_token is not None and finds_token(chunk))
      ):
        text = normalize_ascii(chunk)
        ids_by_chunk[chunk] = [token.id for token in model.tokenize(text)]
      else:
        complex_chunks.append(chunk)
    ids_by_chunk |= zip(
      complex_chunks, self._encode(complex_chunks), strict=True
    )
    return {
      chunk: array.array("i", ids_by_chunk[chunk]).tobytes()
      for chunk in ids_by_chunk
    }

  def _encode(self, texts: list[str]) -> list[list[int]]:
    cleaned_texts = [self._clean(text, False)[0] for text in texts]
    encodings = self.plain_text_tokenizer.encode_batch_fast(
      cleaned_texts, add_special_tokens=False
    )
    return [encoding.ids for encoding in encodings]

  def encode_words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encodes words as if they stood in the middle of a text.

    In byte-level BPE a piece includes the space before it. So each word is
    encoded with a space before it, except for an added token.

    Args:
      words: N words without spaces around them.

    Returns:
      See `encode_flat`.
    """
    if self.algorithm != "bytelevel":
      return self.encode_flat(words)
    splitter = self.plain_text_tokenizer.pre_tokenizer
    if not self.added_tokens or not isinstance(
      splitter, pre_tokenizers.ByteLevel
    ):
      return self.encode_flat([f" {word}" for word in words])
    return self._with_space_before.encode_flat(words)

  @functools.cached_property
  def _with_space_before(self) -> "Vocabulary":
    """This byte-level BPE, changed to put a space before every text."""
    plain_text_tokenizer = copy_added_tokens(
      self.plain_text_tokenizer,
      copy_without_added_tokens(self.plain_text_tokenizer),
    )
    uses_regex = self.plain_text_tokenizer.pre_tokenizer.use_regex
    plain_text_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
      True, use_regex=uses_regex
    )
    return dataclasses.replace(
      self,
      plain_text_tokenizer=plain_text_tokenizer,
      chunk_pattern=WHOLE_TEXT_PATTERN,
      # This pattern matches every text, so no text is cut into chunks.
      uncut_pattern=WHOLE_TEXT_PATTERN,
      normalize_ascii=None,
      _caches=[{}],
    )

  def encode_special(self, text: str) -> list[int]:
    """Returns the ids of a text in which special tokens may be spelled out.

    Only the exact spelling is read as a special token. So `[MASK]` is a special
    token and `[mask]` is text, even if the tokenizer changes text to lower
    case. No special token is added around the text.
    """
    return self.encode_offsets([text], special=True)[0].ids

  def encode_offsets(
    self, texts: Sequence[str], special: bool = False
  ) -> list[EncodedText]:
    """Returns ids and offsets into the raw texts.

    The offsets are the library's offsets, with two changes:
    * A piece ends after the marks that follow its last character. Cleaning
      drops these marks or composes them with the letter.
    * Cleaning may make one character from several characters, such as the two
      signs of a quote ''. Then the piece includes all of these characters.

    Args:
      texts: raw texts.
      special: True if a special token that is spelled out in a text, such as
        `[MASK]`, is read as the special token; False if it is read as text.
    """
    cleaned_texts = [self._clean(text, special) for text in texts]
    encodings = (
      self.special_tokenizer if special else self.plain_text_tokenizer
    ).encode_batch(
      [text for text, _ in cleaned_texts], add_special_tokens=False
    )
    encoded_texts = []
    for text, encoding, (_, origins) in zip(
      texts, encodings, cleaned_texts, strict=True
    ):
      offsets = encoding.offsets
      if origins is not None:
        offsets = [
          (origins[begin], origins[end - 1] + 1) for begin, end in offsets
        ]
      offsets = extend_offsets(text, offsets, self._joining_cleaner)
      encoded_texts.append(EncodedText(encoding.ids, offsets))
    return encoded_texts

  @functools.cached_property
  def _joining_cleaner(self) -> Callable[[str], str] | None:
    return (
      None
      if self.clean is not None
      else joining_cleaner(self.plain_text_tokenizer)
    )

  def _clean(self, text: str, special: bool) -> tuple[str, list[int] | None]:
    """Cleans a text for the library.

    Args:
      text: the raw text.
      special: True if special tokens in the text are not cleaned.

    Returns:
      The text that the library sees and, for each of its characters, the index
      of the raw character, or -1 for a space that was added. The indices are
      None if the library sees the raw text.
    """
    text = replace_surrogates(text)
    if self.clean is None:
      return text, None
    if not special:
      return self.clean(text)
    token_pattern = "|".join(map(re.escape, self._special_contents))
    cleaned: list[str] = []
    origins: list[int] = []
    part_start = 0
    for part in re.split(f"({token_pattern})", text):
      if part in self._special_contents:
        cleaned_part, indices = part, list(range(len(part)))
      else:
        cleaned_part, indices = self.clean(part)
      cleaned.append(f"{cleaned_part} ")
      origins += [
        *(index + part_start if index >= 0 else -1 for index in indices),
        -1,
      ]
      part_start += len(part)
    return "".join(cleaned), origins

  @functools.cached_property
  def _special_contents(self) -> list[str]:
    """The spellings that `special_tokenizer` reads as special tokens."""
    added = self.special_tokenizer.get_added_tokens_decoder().values()
    return [token.content for token in added]

  def find_word_starts(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns a bool array with the shape of `ids`, True where a word starts.

    The first id along the last axis always starts a word, because the first
    word of a text has no space before it.
    """
    ids = np.asarray(ids, np.int64)
    is_start = self.at_word_boundary[ids]
    if self.marks_word_ends:
      # So far `is_start` says which tokens end a word; the token after such a
      # token starts a word. An added token always starts a word.
      is_start = np.roll(is_start, 1, axis=-1) | self.is_added_token[ids]
    elif self.added_tokens:
      is_start |= np.roll(self.is_added_token[ids], 1, axis=-1)
    if is_start.size:
      is_start[..., 0] = True
    return is_start

  @functools.cached_property
  def is_added_token(self) -> np.ndarray:
    """[V + len(other_words)] bool, True for the ids of added tokens."""
    is_added_id = np.zeros(self.num_ids, bool)
    is_added_id[self.added_ids] = True
    return is_added_id

  @functools.cached_property
  def added_ids(self) -> list[int]:
    """The ids of `added_tokens`."""
    ids_or_none = (
      self.special_tokenizer.token_to_id(token.content)
      for token in self.added_tokens
    )
    return [token_id for token_id in ids_or_none if token_id is not None]

  @functools.cached_property
  def never_masked_ids(self) -> list[int]:
    """The ids of added tokens that are special; they are never masked."""
    pairs = zip(self.added_tokens, self.added_ids, strict=True)
    return [token_id for token, token_id in pairs if token.special]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids; byte-level BPE gives back the encoded text."""
    decode = self.plain_text_tokenizer.decoder.decode
    if not self.added_tokens:
      return decode([self.pieces[i] for i in ids])
    if self.algorithm != "bytelevel":
      # Spell added tokens as the model spells pieces that are whole words.
      piece_format = {"gpt1": "{}</w>", "unigram": "▁{}"}.get(
        self.algorithm, "{}"
      )
      pieces: list[str] = []
      for i in ids:
        piece = self.pieces[i]
        if self.is_added_token[i] and pieces[-1:] != ["▁"]:
          piece = piece_format.format(piece)
        pieces.append(piece)
      return decode(pieces)
    texts = []
    for are_added, group in itertools.groupby(
      ids, lambda i: self.is_added_token[i]
    ):
      pieces = [self.pieces[i] for i in group]
      texts.append("".join(pieces) if are_added else decode(pieces))
    return "".join(texts)

  def __getstate__(self) -> dict[str, Any]:
    """Returns the fields for a pickle, with an empty cache."""
    return self.__dict__ | {"_caches": [{}]}

  def __setstate__(self, state: dict[str, Any]) -> None:
    """Restores the fields of `__getstate__`."""
    self.__dict__.update(state)
    # The library's pickle does not store this setting.
    self.plain_text_tokenizer.encode_special_tokens = True

  def __eq__(self, other: object) -> bool:
    """Returns True if the library's tokenizer and the special ids are equal."""
    if not isinstance(other, Vocabulary):
      return False
    return (self.plain_text_tokenizer.to_str(), self.special) == (
      other.plain_text_tokenizer.to_str(),
      other.special,
    )


def copy_without_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
  """Returns a copy with the rules and the model, but without added tokens."""
  new_tokenizer = Tokenizer(tokenizer.model)
  for step in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
    setattr(new_tokenizer, step, getattr(tokenizer, step))
  return new_tokenizer


def copy_added_tokens(source: Tokenizer, target: Tokenizer) -> Tokenizer:
  """Adds to `target` all tokens that were added to `source`; returns it."""
  token_by_id = source.get_added_tokens_decoder()
  target.add_tokens([token_by_id[token_id] for token_id in sorted(token_by_id)])
  target.encode_special_tokens = source.encode_special_tokens
  return target


def copy_that_reads(tokenizer: Tokenizer, tokens: Iterable[str]) -> Tokenizer:
  """Returns a copy that reads only `tokens` as special tokens."""
  new_tokenizer = copy_without_added_tokens(tokenizer)
  new_tokenizer.add_special_tokens(
    [AddedToken(token, normalized=False) for token in tokens]
  )
  return new_tokenizer


def joining_cleaner(tokenizer: Tokenizer) -> Callable[[str], str] | None:
  """Returns the cleaning of a tokenizer if it may join several characters.

  Returns:
    A function from a text to the cleaned text. The result is None if the
    cleaning looks only at single characters and marks. It is also None if the
    cleaning adds something to every text: then the cleaned text of a substring
    does not show what the cleaning joins.
  """
  rules = tokenizer.normalizer
  if rules is None or isinstance(rules, normalizers.BertNormalizer):
    return None
  clean = rules.normalize_str
  return clean if clean("xy") == clean("x") + clean("y") else None


def extend_offsets(
  text: str,
  offsets: list[tuple[int, int]],
  clean: Callable[[str], str] | None = None,
) -> list[tuple[int, int]]:
  """Extends each piece by the raw characters that also belong to it.

  A piece gets the marks after it, and the characters that cleaning joins with
  its first or last character. The library gives a joined character the position
  of only one of the raw characters.

  Args:
    text: the raw text.
    offsets: (begin, end) of each piece, in ascending order.
    clean: see `joining_cleaner`.
  """
  if clean is not None:
    offsets = _extend_begins(text, offsets, clean)
  elif text.isascii():
    return offsets
  extended_offsets = []
  extended_ends: dict[int, int] = {}
  # A piece is extended at most up to `stop`, where the next piece begins.
  stop = len(text)
  for begin, end in reversed(offsets):
    if begin < end:
      # Several pieces may come from the same character.
      if end not in extended_ends:
        extended_ends[end] = _extended_end(text, end, stop, clean)
      stop = min(stop, begin)
      end = extended_ends[end]
    extended_offsets.append((begin, end))
  return extended_offsets[::-1]


def _extend_begins(
  text: str, offsets: list[tuple[int, int]], clean: Callable[[str], str]
) -> list[tuple[int, int]]:
  """Extends pieces by the characters before them that cleaning joins."""
  extended_offsets = []
  # All pieces that begin at the character `last_begin` get `extended_begin`,
  # which is never before `stop`, where the earlier pieces end.
  last_begin, extended_begin = -1, 0
  stop = last_end = 0
  for begin, end in offsets:
    if begin < end:
      if begin != last_begin:
        last_begin, stop = begin, last_end
        extended_begin = _extended_begin(text, begin, stop, clean)
      last_end = max(last_end, end)
      begin = extended_begin
    extended_offsets.append((begin, end))
  return extended_offsets


def _extended_begin(
  text: str, begin: int, stop: int, clean: Callable[[str], str]
) -> int:
  """Returns where the characters begin that are joined with text[begin].

  Args:
    text: the raw text.
    begin: the index of a character.
    stop: the smallest index that may be returned.
    clean: see `joining_cleaner`.
  """
  first_index = begin
  while first_index > stop and not text[first_index - 1].isspace():
    starts = range(
      first_index - 1, max(stop, first_index - _MAX_RULE_CHARS) - 1, -1
    )
    joined_starts = (
      i for i in starts if _are_joined(text, i, first_index, begin + 1, clean)
    )
    start = next(joined_starts, None)
    if start is None:
      break
    first_index = start
  return first_index


def _extended_end(
  text: str, end: int, stop: int, clean: Callable[[str], str] | None
) -> int:
  """Returns where the characters end that belong to text[end - 1].

  Args:
    text: the raw text.
    end: the index after a character.
    stop: the largest index that may be returned.
    clean: see `joining_cleaner`.
  """
  last_index = end - 1
  while end < stop:
    if _is_attached(text[end]):
      end += 1
    elif clean is not None and not text[end].isspace():
      ends = range(end + 1, min(stop, end + _MAX_RULE_CHARS) + 1)
      joined_ends = (
        i for i in ends if _are_joined(text, last_index, end, i, clean)
      )
      new_end = next(joined_ends, None)
      if new_end is None:
        break
      end = new_end
    else:
      break
  return end


def _are_joined(
  text: str, begin: int, middle: int, end: int, clean: Callable[[str], str]
) -> bool:
  """Returns True if cleaning joins text[begin:middle] and text[middle:end]."""
  left_text, right_text = text[begin:middle], text[middle:end]
  return clean(left_text + right_text) != clean(left_text) + clean(right_text)


def _is_attached(character: str) -> bool:
  """Returns True for a mark or a character of `_ATTACHED_PATTERN`."""
  return unicodedata.category(character)[0] == "M" or bool(
    _ATTACHED_PATTERN.match(character)
  )


def is_simple_chunk(chunk: str) -> bool:
  """Returns True for printable ASCII with a space at most at its beginning."""
  return chunk.isascii() and chunk.isprintable() and " " not in chunk[1:]


def _join_ids(
  chunks: list[str], cache: dict[str, bytes], uncached: dict[str, bytes]
) -> bytes:
  """Joins the ids of chunks, which are in the cache or in `uncached`."""
  try:
    return b"".join(map(cache.__getitem__, chunks))
  except KeyError:
    return b"".join(
      uncached[chunk] if chunk in uncached else cache[chunk] for chunk in chunks
    )


def replace_surrogates(text: str) -> str:
  """Replaces lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
  if text.isascii():
    return text
  try:
    text.encode("utf-8")
  except UnicodeEncodeError:
    return "".join(
      "\ufffd" if "\ud800" <= character <= "\udfff" else character
      for character in text
    )
  return text


def bert_special_ids(vocab: Sequence[str], source: str) -> SpecialIds:
  """Returns the ids of BERT's special tokens.

  Args:
    vocab: the pieces in the order of their ids.
    source: the file of the vocabulary, for messages.

  Raises:
    UserError: a special token is missing; the message names it and `source`.
  """
  id_by_piece = {piece: piece_id for piece_id, piece in enumerate(vocab)}
  missing_tokens = [
    piece for piece in SPECIAL_TOKENS if piece not in id_by_piece
  ]
  if missing_tokens:
    raise UserError(
      f"{source}: the vocabulary has no {', '.join(missing_tokens)}; BERT needs"
      f" {', '.join(SPECIAL_TOKENS)}. Train one with `bert_jax vocab`"
      ", or use a published vocab.txt."
    )
  return SpecialIds(*(id_by_piece[piece] for piece in SPECIAL_TOKENS))
