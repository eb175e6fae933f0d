"""A tokenizer: text to ids, offsets and back, around the `tokenizers` library.

One class serves every kind; the files beside this one build it: `wordpiece`,
`bpe` (byte-level and GPT-1's), `unigram` (SentencePiece models). Where nothing
else is said the ids are those of Hugging Face's fast tokenizers.
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

# In the order of the ids that `bert_jax vocab` gives them.
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Distinct chunks of text whose ids are kept; English needs about 10,000 for
# 95% of its running words. A chunk longer than this many characters is not.
_CACHE_SIZE = 2**18
_CACHED_CHARS = 64
# Parts of texts, see `Vocabulary.atoms`. By default a text is one part.
WHOLE = re.compile("(?s:.+)")
# Where only white space and punctuation separate, and both always do.
WORDS = re.compile(r"[^ !-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]")
# Characters that, like marks, belong to the character before them: vowels and
# finals of decomposed Korean syllables, joiners, sound marks of half-width
# kana.
_ATTACHED = re.compile("[\u1160-\u11ff\ud7b0-\ud7ff\u200c\u200d\uff9e\uff9f]")
# Characters of the longest text that a rule of cleaning makes one, less one.
_LONGEST_RULE = 16
# White space separates; a mark after a space could be one character with it.
SPACED = re.compile(r" *[^ ]+(?: +(?![\w!-~])[^ ]*)*")


class SpecialIds(NamedTuple):
  """Ids of the special tokens of a vocabulary; None for those it lacks."""

  pad: int | None
  unk: int | None
  cls: int | None
  sep: int | None
  mask: int | None


class Encoded(NamedTuple):
  """Ids of a text and where they come from.

  Attributes:
    ids: [T] ids.
    offsets: [T] pairs (begin, end) of characters of the raw text.
  """

  ids: list[int]
  offsets: list[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Holds:
  """Finds texts that may hold an added token; serves as the pattern `whole`.

  Attributes:
    raw: matches the tokens that are looked for in the raw text.
    normalized: matches the tokens that are looked for in the normalized text.
    normalizer: normalizes a text; None if texts are not normalized.
    other: the pattern `whole` of the vocabulary without added tokens.
    ascii: normalizes printable ASCII, five times as fast as `normalizer`; None
      if there is no such function.
  """

  raw: re.Pattern | None
  normalized: re.Pattern | None
  normalizer: normalizers.Normalizer | None
  other: re.Pattern | None = None
  ascii: Callable[[str], str] | None = None

  def search(self, text: str) -> bool:
    """Returns True if `text` must be encoded as a whole."""
    if self.other is not None and self.other.search(text):
      return True
    return self.finds_token(text)

  def finds_token(self, text: str) -> bool:
    """Returns True if `text` may hold an added token."""
    if self.raw is not None and self.raw.search(text):
      return True
    if self.normalized is None:
      return False
    if self.ascii is not None and text.isascii() and text.isprintable():
      text = self.ascii(text)
    elif self.normalizer is not None:
      text = self.normalizer.normalize_str(valid(text))
    return self.normalized.search(text) is not None


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
  """Text to ids and back; deterministic, and may be pickled.

  Attributes:
    kind: "wordpiece", "bytelevel", "gpt1", "unigram" or "words".
    pieces: the vocabulary in the order of the ids.
    special: ids of the special tokens.
    plain: the library's tokenizer, to which `[SEP]` in a text is text.
    marked: the same, to which it is a special token.
    boundary: [V] bool, True where a piece begins a word, or, for a kind that
      marks the ends, ends one; `others` count too.
    options: the options with which `files` build it again.
    files: file name -> content, as published.
    ends: `boundary` is about ends (GPT-1).
    atoms: matches parts of a text whose ids do not depend on what is around
      them; what it leaves out are spaces.
    whole: a text in which it matches may not be cut; None: any may.
    ascii: an atom of printable ASCII -> the one word that the model sees of it;
      None where such an atom may be more.
    clean: raw text -> (the text that the library sees, for each of its
      characters the index of the raw one); None where they are the same.
    others: words that have ids from V on (words).
    around: ids that a corpus has before and after each sentence (words).
    added: tokens that are found in a text before the model encodes the rest;
      see `added_tokens`. The special tokens of the family are not among them.
  """

  kind: str
  pieces: Sequence[str]
  special: SpecialIds
  plain: Tokenizer
  marked: Tokenizer
  boundary: np.ndarray
  options: Mapping[str, Any]
  files: Mapping[str, bytes]
  ends: bool = False
  atoms: re.Pattern = WHOLE
  whole: re.Pattern | Holds | None = None
  ascii: Callable[[str], str] | None = None
  clean: Callable[[str], tuple[str, list[int]]] | None = None
  others: Sequence[str] = ()
  around: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
  added: tuple[AddedToken, ...] = ()
  _caches: list[dict[str, bytes]] = dataclasses.field(
    default_factory=lambda: [{}], repr=False
  )

  @property
  def vocab_size(self) -> int:
    return len(self.pieces)

  @property
  def num_ids(self) -> int:
    return len(self.pieces) + len(self.others)

  @property
  def lower_case(self) -> bool:
    return bool(self.options.get("lower_case", False))

  @property
  def keep_accents(self) -> bool:
    """True if accents stay. By default lower case means without accents."""
    keep = self.options.get("keep_accents")
    if keep is None and self.options.get("strip_accents") is not None:
      keep = not self.options["strip_accents"]
    return not self.lower_case if keep is None else keep

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Returns the ids of each text, for corpora.

    No special token is added, and a literal `[SEP]` is text like any other:
    a corpus must not be able to write special tokens.
    """
    rows = self._encode_rows(texts)
    return [np.frombuffer(row, np.int32).tolist() for row in rows]

  def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of `encode_batch` end to end, twice as fast.

    Args:
      texts: [N] texts.

    Returns:
      [T] int32 ids of all texts, and [N] int64, how many each one has.
    """
    rows = self._encode_rows(texts)
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    size = np.dtype(np.int32).itemsize
    return np.frombuffer(b"".join(rows), np.int32), lengths // size

  def _encode_rows(self, texts: Sequence[str]) -> list[bytes]:
    """Returns the int32 ids of each text as bytes."""
    if len(self._caches[0]) > _CACHE_SIZE:
      # A new one: another thread may be reading the old one.
      self._caches[0] = {}
    cache = self._caches[0]
    chunks = [self._chunks(text) for text in texts]
    new = set(itertools.chain.from_iterable(chunks)).difference(cache)
    encoded = self._make(new)
    uncached = {c: encoded.pop(c) for c in new if len(c) > _CACHED_CHARS}
    cache.update(encoded)
    return [_join(row, cache, uncached) for row in chunks]

  def _chunks(self, text: str) -> list[str]:
    """Cuts a text where there is a boundary whatever is around it."""
    if self.whole is not None and self.whole.search(text):
      return [text]
    return self.atoms.findall(text)

  def _make(self, chunks: Iterable[str]) -> dict[str, bytes]:
    """Returns the ids of chunks, as bytes."""
    other_chunks, ids = [], {}
    model, normalize_ascii = self.plain.model, self.ascii
    finds_token = self.whole.finds_token if self.added else None
    for chunk in chunks:
      # Simple chunks need only the model, which is six times faster.
      if (
        normalize_ascii is not None
        and is_simple(chunk)
        and not (finds_token is not None and finds_token(chunk))
      ):
        text = normalize_ascii(chunk)
        ids[chunk] = [token.id for token in model.tokenize(text)]
      else:
        other_chunks.append(chunk)
    ids |= zip(other_chunks, self._encode(other_chunks), strict=True)
    return {chunk: array.array("i", ids[chunk]).tobytes() for chunk in ids}

  def _encode(self, texts: list[str]) -> list[list[int]]:
    cleaned = [self._clean(text, False)[0] for text in texts]
    encodings = self.plain.encode_batch_fast(cleaned, add_special_tokens=False)
    return [encoding.ids for encoding in encodings]

  def encode_words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encodes words as in the middle of a text; see `encode_flat`.

    In byte-level BPE a piece includes the space before it, so each word is
    encoded with a space before it. An added token does not get a space.

    Args:
      words: [N] words, without spaces around them.
    """
    if self.kind != "bytelevel":
      return self.encode_flat(words)
    splitter = self.plain.pre_tokenizer
    if not self.added or not isinstance(splitter, pre_tokenizers.ByteLevel):
      return self.encode_flat([f" {word}" for word in words])
    return self._spaced.encode_flat(words)

  @functools.cached_property
  def _spaced(self) -> "Vocabulary":
    """This byte-level BPE, but it puts a space before every text."""
    plain = added_to(share(self.plain), self.plain)
    regex = self.plain.pre_tokenizer.use_regex
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(True, use_regex=regex)
    # Let `whole` match every text, so that no text is cut into chunks.
    return dataclasses.replace(
      self,
      plain=plain,
      atoms=WHOLE,
      whole=dataclasses.replace(self.whole, other=WHOLE),
      ascii=None,
      _caches=[{}],
    )

  def encode_special(self, text: str) -> list[int]:
    """Returns the ids of a text in which `[MASK]` and the like are special.

    Special tokens are known by their exact spelling only: with lower-casing
    too, `[MASK]` is one id and `[mask]` is three. None is added.
    """
    return self.encode_offsets([text], special=True)[0].ids

  def encode_offsets(
    self, texts: Sequence[str], special: bool = False
  ) -> list[Encoded]:
    """Returns ids and offsets into the raw texts.

    The offsets are those of the library, with two changes: a piece ends after
    the marks that follow its last character, which cleaning drops or composes
    with the letter. And it holds all characters that cleaning makes one, as the
    two signs of a quote ''.

    Args:
      texts: raw texts.
      special: True if special tokens in a text become their ids.
    """
    cleaned = [self._clean(text, special) for text in texts]
    encodings = (self.marked if special else self.plain).encode_batch(
      [text for text, _ in cleaned], add_special_tokens=False
    )
    result = []
    for text, encoding, (_, origin) in zip(
      texts, encodings, cleaned, strict=True
    ):
      offsets = encoding.offsets
      if origin is not None:
        offsets = [(origin[b], origin[e - 1] + 1) for b, e in offsets]
      offsets = cover_marks(text, offsets, self._joins)
      result.append(Encoded(encoding.ids, offsets))
    return result

  @functools.cached_property
  def _joins(self) -> Callable[[str], str] | None:
    return None if self.clean is not None else joining(self.plain)

  def _clean(self, text: str, special: bool) -> tuple[str, list[int] | None]:
    """Returns the text that the library sees, and its places in the raw text.

    The second value is None if the library sees the raw text.
    """
    text = valid(text)
    if self.clean is None:
      return text, None
    if not special:
      return self.clean(text)
    tokens = "|".join(map(re.escape, self._marks))
    cleaned, origin, begin = [], [], 0
    for part in re.split(f"({tokens})", text):
      text, source = part, list(range(len(part)))
      if part not in self._marks:
        text, source = self.clean(part)
      cleaned.append(f"{text} ")
      origin += [*(i + begin if i >= 0 else -1 for i in source), -1]
      begin += len(part)
    return "".join(cleaned), origin

  @functools.cached_property
  def _marks(self) -> list[str]:
    added = self.marked.get_added_tokens_decoder().values()
    return [token.content for token in added]

  def word_starts(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns a bool array of the shape of `ids`, True where a word starts.

    The first id along the last axis starts a word whatever piece it is: the
    first word of a text has no space before it.
    """
    ids = np.asarray(ids, np.int64)
    flags = self.boundary[ids]
    if self.ends:
      # An added token begins a word, even if the piece before it ends no word.
      flags = np.roll(flags, 1, axis=-1) | self.alone[ids]
    elif self.added:
      flags |= np.roll(self.alone[ids], 1, axis=-1)
    if flags.size:
      flags[..., 0] = True
    return flags

  @functools.cached_property
  def alone(self) -> np.ndarray:
    """[V] bool, True for an added token, which is always a whole word."""
    flags = np.zeros(self.num_ids, bool)
    flags[self.added_ids] = True
    return flags

  @functools.cached_property
  def added_ids(self) -> list[int]:
    """The ids of `added`."""
    return [self.marked.token_to_id(token.content) for token in self.added]

  @functools.cached_property
  def unmasked_ids(self) -> list[int]:
    """The ids of added tokens that are special: they are never masked."""
    pairs = zip(self.added, self.added_ids, strict=True)
    return [number for token, number in pairs if token.special]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text; byte-level BPE gives back exactly what was encoded."""
    decode = self.plain.decoder.decode
    if not self.added:
      return decode([self.pieces[i] for i in ids])
    if self.kind != "bytelevel":
      # Spell added tokens like those pieces of the model that are whole words.
      spelling = {"gpt1": "{}</w>", "unigram": "▁{}"}.get(self.kind, "{}")
      pieces: list[str] = []
      for i in ids:
        piece = self.pieces[i]
        if self.alone[i] and pieces[-1:] != ["▁"]:
          piece = spelling.format(piece)
        pieces.append(piece)
      return decode(pieces)
    texts = []
    for is_added, group in itertools.groupby(ids, lambda i: self.alone[i]):
      pieces = [self.pieces[i] for i in group]
      texts.append("".join(pieces) if is_added else decode(pieces))
    return "".join(texts)

  def __getstate__(self) -> dict[str, Any]:
    return self.__dict__ | {"_caches": [{}]}

  def __setstate__(self, state: dict[str, Any]) -> None:
    self.__dict__.update(state)
    # The library's pickle does not store this setting.
    self.plain.encode_special_tokens = True

  def __eq__(self, other: object) -> bool:
    if not isinstance(other, Vocabulary):
      return False
    return (self.plain.to_str(), self.special) == (
      other.plain.to_str(),
      other.special,
    )


def share(tokenizer: Tokenizer) -> Tokenizer:
  """Returns one of the same parts, without the tokens added to the first."""
  copy = Tokenizer(tokenizer.model)
  for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
    setattr(copy, part, getattr(tokenizer, part))
  return copy


def added_to(tokenizer: Tokenizer, other: Tokenizer) -> Tokenizer:
  """Adds to `tokenizer` all tokens that were added to `other`; returns it."""
  added = other.get_added_tokens_decoder()
  tokenizer.add_tokens([added[number] for number in sorted(added)])
  tokenizer.encode_special_tokens = other.encode_special_tokens
  return tokenizer


def mark(tokenizer: Tokenizer, tokens: Iterable[str]) -> Tokenizer:
  """Returns one to which `tokens`, by their exact spelling, are special."""
  copy = share(tokenizer)
  copy.add_special_tokens([AddedToken(t, normalized=False) for t in tokens])
  return copy


def joining(tokenizer: Tokenizer) -> Callable[[str], str] | None:
  """Returns what cleans a text, if it may make one character of several ones.

  Returns:
    None where it looks at single characters and marks alone, or where it adds
    something to every text, so that parts of a text do not show its rules.
  """
  rules = tokenizer.normalizer
  if rules is None or isinstance(rules, normalizers.BertNormalizer):
    return None
  clean = rules.normalize_str
  return clean if clean("xy") == clean("x") + clean("y") else None


def cover_marks(
  text: str,
  offsets: list[tuple[int, int]],
  clean: Callable[[str], str] | None = None,
) -> list[tuple[int, int]]:
  """Extends each piece to the characters that belong to it and to no other.

  These are the marks after it, and the characters that cleaning makes one with
  its first or last one: the library gives the result the place of one of them.

  Args:
    text: the raw text.
    offsets: (begin, end) of each piece, in ascending order.
    clean: see `joining`.
  """
  if clean is not None:
    offsets = _cover_before(text, offsets, clean)
  elif text.isascii():
    return offsets
  covered = []
  extended_ends: dict[int, int] = {}
  stop = len(text)
  for begin, end in reversed(offsets):
    if begin < end:
      # Several pieces may come from the same character.
      if end not in extended_ends:
        extended_ends[end] = _end(text, end, stop, clean)
      stop = min(stop, begin)
      end = extended_ends[end]
    covered.append((begin, end))
  return covered[::-1]


def _cover_before(
  text: str, offsets: list[tuple[int, int]], clean: Callable[[str], str]
) -> list[tuple[int, int]]:
  """Lets pieces begin where the characters do that are one with their first."""
  covered = []
  # The end of the last piece that begins before `last`, and of those there.
  last, before, reach = -1, 0, 0
  longer = 0
  for begin, end in offsets:
    if begin < end:
      if begin != last:
        last, before = begin, reach
        longer = _begin(text, begin, before, clean)
      reach = max(reach, end)
      begin = longer
    covered.append((begin, end))
  return covered


def _begin(
  text: str, begin: int, stop: int, clean: Callable[[str], str]
) -> int:
  """Returns where the characters begin that are one with that at `begin`."""
  first = begin
  while first > stop and not text[first - 1].isspace():
    places = range(first - 1, max(stop, first - _LONGEST_RULE) - 1, -1)
    joined = (i for i in places if _is_one(text, i, first, begin + 1, clean))
    place = next(joined, None)
    if place is None:
      break
    first = place
  return first


def _end(
  text: str, end: int, stop: int, clean: Callable[[str], str] | None
) -> int:
  """Returns where the characters end that belong to the one before `end`."""
  last = end - 1
  while end < stop:
    if _is_attached(text[end]):
      end += 1
    elif clean is not None and not text[end].isspace():
      places = range(end + 1, min(stop, end + _LONGEST_RULE) + 1)
      joined = (i for i in places if _is_one(text, last, end, i, clean))
      place = next(joined, None)
      if place is None:
        break
      end = place
    else:
      break
  return end


def _is_one(
  text: str, begin: int, middle: int, end: int, clean: Callable[[str], str]
) -> bool:
  """Returns True if cleaning [begin, end) at once differs from two steps."""
  first, second = text[begin:middle], text[middle:end]
  return clean(first + second) != clean(first) + clean(second)


def _is_attached(character: str) -> bool:
  return unicodedata.category(character)[0] == "M" or bool(
    _ATTACHED.match(character)
  )


def is_simple(chunk: str) -> bool:
  """Returns True for printable ASCII with a space at most at its begin."""
  return chunk.isascii() and chunk.isprintable() and " " not in chunk[1:]


def _join(
  row: list[str], cache: dict[str, bytes], uncached: dict[str, bytes]
) -> bytes:
  try:
    return b"".join(map(cache.__getitem__, row))
  except KeyError:
    return b"".join(uncached[c] if c in uncached else cache[c] for c in row)


def valid(text: str) -> str:
  """`text` with lone surrogates, which no UTF-8 has, replaced by U+FFFD."""
  if text.isascii():
    return text
  try:
    text.encode("utf-8")
  except UnicodeEncodeError:
    return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
  return text


def special_ids(vocab: Sequence[str], source: str) -> SpecialIds:
  """Looks up the special tokens.

  Raises:
    UserError: a special token is missing; names it and `source`.
  """
  index = {piece: i for i, piece in enumerate(vocab)}
  missing = [piece for piece in SPECIAL_TOKENS if piece not in index]
  if missing:
    raise UserError(
      f"{source}: the vocabulary has no {', '.join(missing)}; BERT needs"
      f" {', '.join(SPECIAL_TOKENS)}. Train one with `bert_jax vocab`"
      ", or use a published vocab.txt."
    )
  return SpecialIds(*(index[piece] for piece in SPECIAL_TOKENS))
