"""Learns vocabularies from texts: WordPiece, byte-level BPE, unigram, words.

`corpus/train_vocab.py` opens the texts and writes the files.

The `tokenizers` library learns WordPiece and byte-level BPE. Its trainers give
different pieces each time: they number characters in the order of a randomly
seeded hash table, and these numbers decide between merges with equal counts. So
this file counts the words first, and gives the trainer the alphabet in a fixed
order. The pieces then depend only on the text, and not on the number of
threads.

The library SentencePiece learns unigram models, with ALBERT's settings
(google-research/albert README, the `spm_train` command): <pad> has id 0, <unk>
has id 1, and [CLS], [SEP] and [MASK] follow. Some punctuation signs are always
pieces. The pieces cover 99.995% of the characters. At most 10 million lines are
read; they are drawn at random.
"""

import io
import pathlib
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from bert_jax import files
from bert_jax.messages import UserError, by_caller, note
from bert_jax.text import bpe, cleaning, unigram, wordpiece, words
from bert_jax.text.cleaning import Cleaning
from bert_jax.text.vocabulary import (
  SPECIAL_TOKENS,
  Vocabulary,
  replace_surrogates,
)
from bert_jax.text.wordpiece import CONTINUATION, MAX_WORD_CHARS

ALGORITHMS = ("wordpiece", "bytelevel", "unigram", "words")
# Pairs of pieces that occur less often than this are not merged. The number is
# the default of Hugging Face's trainers.
MIN_FREQUENCY = 2
# WordPiece and unigram models have pieces that cover this share of a text's
# characters, as ALBERT's SentencePiece does.
COVERAGE = 0.99995
# WordPiece: this many of the most frequent characters become pieces, as in
# Hugging Face's BertWordPieceTokenizer. The rest of the characters are [UNK].
# If a text has many more characters, as in Chinese and Korean, more characters
# become pieces, until the pieces cover the share `COVERAGE` of the text. All
# characters together take at most 3/4 of the vocabulary.
MAX_ALPHABET = 1000
# Byte-level BPE: fairseq's dictionary begins with FIRST_PIECES, and ends with
# LAST_PIECES.
FIRST_PIECES = ("<s>", "<pad>", "</s>", "<unk>")
LAST_PIECES = ("<mask>",)
# Unigram: the special pieces after <pad> and <unk>, and the characters that are
# always pieces.
CONTROL_PIECES = ("[CLS]", "[SEP]", "[MASK]")
REQUIRED_PIECES = ("(", ")", '"', "-", ".", "–", "£", "€")
MAX_LINES = 10_000_000
# SentencePiece silently drops lines of more than 4,192 bytes. So lines are cut
# to this many characters, which have at most 4 bytes each.
MAX_LINE_CHARS = 1_000
# With several threads, SentencePiece would round its sums differently each
# time.
NUM_THREADS = 1
# Texts with more characters than this are cut, and the texts for a trainer have
# about this many characters.
_BATCH_CHARS = 2**18


def train(
  algorithm: str,
  texts: Iterable[str],
  size: int,
  text_cleaning: Cleaning,
  rules: str = words.RULES[0],
) -> Vocabulary | None:
  """Learns a vocabulary; every call with equal arguments gives equal pieces.

  Args:
    algorithm: one of `ALGORITHMS`: "wordpiece" (BERT), "bytelevel" (RoBERTa),
      "unigram" (ALBERT) or "words" (ELMo).
    texts: the texts, which are read once.
    size: the number of pieces, with special tokens. There are fewer pieces if
      the text is too small.
    text_cleaning: how capitals and accents are treated. "bytelevel" and "words"
      ignore this setting, and keep capitals and accents.
    rules: one of `words.RULES`; only the algorithm "words" uses it.

  Returns:
    The tokenizer; None if the texts have no words.

  Raises:
    UserError: `size` is too small for the algorithm.
  """
  if algorithm == "words":
    return train_words(texts, size, rules)
  if algorithm == "unigram":
    return train_unigram(texts, size, text_cleaning)
  if algorithm == "bytelevel":
    counts = count_bytelevel_words(texts)
    return train_bytelevel(counts, size) if counts else None
  counts = count_wordpiece_words(texts, text_cleaning)
  if not counts:
    return None
  if warning := _long_words_warning(counts):
    note(warning)
  return wordpiece.build(
    train_wordpiece(counts, size),
    bool(text_cleaning.lower_case),
    strip_accents=not text_cleaning.keep_accents,
  )


def _cut_at_line_ends(text: str) -> Iterator[str]:
  """Cuts a text of more than `_BATCH_CHARS` characters at line ends.

  This saves memory: a normalizer stores the offset of every character.
  """
  if len(text) <= _BATCH_CHARS:
    yield text
  else:
    yield from text.split("\n")


def _repeat_words(
  words: Sequence[str], counts: Mapping[str, int]
) -> Iterator[str]:
  """Yields texts in which each word occurs as often as it was counted.

  The trainers of `tokenizers` read texts, and cannot take counts.
  """
  batch: list[str] = []
  num_chars = 0
  for word in words:
    num_remaining = counts[word]
    while num_remaining:
      num_repeats = min(num_remaining, max(1, _BATCH_CHARS // (len(word) + 1)))
      batch.append((word + " ") * num_repeats)
      num_chars += num_repeats * (len(word) + 1)
      num_remaining -= num_repeats
      if num_chars >= _BATCH_CHARS:
        yield "".join(batch)
        batch, num_chars = [], 0
  if batch:
    yield "".join(batch)


def count_wordpiece_words(
  texts: Iterable[str], text_cleaning: Cleaning
) -> Counter[str]:
  """Counts the words as BERT's basic tokenizer splits them.

  Args:
    texts: the texts, which are read once.
    text_cleaning: how capitals and accents are treated.
  """
  strip_accents = not text_cleaning.keep_accents
  lower_case = bool(text_cleaning.lower_case)
  normalize = wordpiece.make_normalizer(lower_case, strip_accents).normalize_str
  count_by_chunk: Counter[str] = Counter()
  for text in texts:
    for block in _cut_at_line_ends(text):
      count_by_chunk.update(normalize(block).split())
  split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
  return words.count_after_split(count_by_chunk, split)


def train_wordpiece(counts: Mapping[str, int], size: int) -> list[str]:
  """Learns at most `size` pieces; `counts` is word -> how often it occurs."""
  count_by_character: Counter[str] = Counter()
  for word, count in counts.items():
    for character in word:
      count_by_character[character] += count
  ranked_characters = sorted(
    count_by_character, key=lambda c: (-count_by_character[c], c)
  )
  alphabet = _choose_alphabet(
    ranked_characters, count_by_character, counts, size
  )
  short_words = sorted(
    word
    for word in counts
    if len(word) <= MAX_WORD_CHARS["huggingface"] and alphabet.issuperset(word)
  )
  inner_characters = {
    character for word in short_words for character in word[1:]
  }
  first_pieces = [
    *SPECIAL_TOKENS,
    *sorted(alphabet),
    *(CONTINUATION + character for character in sorted(inner_characters)),
  ]
  trainer = trainers.WordPieceTrainer(
    vocab_size=size,
    min_frequency=MIN_FREQUENCY,
    special_tokens=first_pieces,
    continuing_subword_prefix=CONTINUATION,
    show_progress=False,
  )
  tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
  tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  tokenizer.train_from_iterator(_repeat_words(short_words, counts), trainer)
  id_by_piece = tokenizer.get_vocab()
  return sorted(id_by_piece, key=id_by_piece.__getitem__)


def _size_name() -> str:
  """Returns the name of the option for the number of pieces."""
  return by_caller("size", "vocab_size")


def _long_words_warning(counts: Mapping[str, int]) -> str | None:
  """Returns a warning if over 1% of the text is in words that become [UNK]."""
  limit = MAX_WORD_CHARS["huggingface"]
  num_long_chars = num_chars = 0
  for word, count in counts.items():
    num_chars += len(word) * count
    num_long_chars += len(word) * count * (len(word) > limit)
  if num_long_chars <= 0.01 * num_chars:
    return None
  flag_text = "--tokenizer=unigram or bytelevel"
  python_text = "family='albert' (unigram) or 'roberta' (byte-level)"
  return (
    f"warning: {num_long_chars / num_chars:.0%} of the text are words of"
    f" more than {limit} characters, each of which is one [UNK]; for a language"
    " that is written without spaces use"
    f" {by_caller(flag_text, python_text)}."
  )


def _choose_alphabet(
  ranked_characters: list[str],
  count_by_character: Mapping[str, int],
  counts: Mapping[str, int],
  size: int,
) -> set[str]:
  """Returns the characters that become pieces.

  Args:
    ranked_characters: all characters, the most frequent first.
    count_by_character: character -> how often it occurs.
    counts: word -> how often it occurs.
    size: the number of pieces of the vocabulary.
  """
  inner_characters = {character for word in counts for character in word[1:]}
  min_occurrences = COVERAGE * sum(count_by_character.values())
  num_occurrences = num_pieces = num_chosen = 0
  for character in ranked_characters:
    # A character that occurs inside words has a second piece, which continues
    # a word.
    num_pieces += 1 + (character in inner_characters)
    if num_occurrences >= min_occurrences or num_pieces > size * 3 // 4:
      break
    num_occurrences += count_by_character[character]
    num_chosen += 1
  return set(ranked_characters[: max(num_chosen, min(MAX_ALPHABET, size // 4))])


def count_bytelevel_words(texts: Iterable[str]) -> Counter[str]:
  """Counts the words as GPT-2 splits them.

  The words are spelled in the letters that stand for bytes.

  Args:
    texts: the texts, which are read once.
  """
  count_by_chunk: Counter[str] = Counter()
  for text in texts:
    for block in _cut_at_line_ends(text):
      if block.isprintable() and "  " not in block and block.strip() == block:
        count_by_chunk.update(bpe.SPACE_WORD_PATTERN.findall(block))
      else:
        count_by_chunk[block] += 1
  split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
  return words.count_after_split(
    count_by_chunk, lambda chunk: split(replace_surrogates(chunk))
  )


def train_bytelevel(counts: Mapping[str, int], size: int) -> Vocabulary:
  """Returns a byte-level BPE with RoBERTa's special tokens.

  Args:
    counts: word -> how often it occurs; a word is spelled in the letters that
      stand for bytes.
    size: the largest number of pieces, with special tokens.

  Raises:
    UserError: `size` is too small for the bytes and the special tokens.
  """
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  max_learnt_pieces = size - len(FIRST_PIECES) - len(LAST_PIECES)
  if max_learnt_pieces < len(alphabet):
    raise UserError(
      f"{_size_name()}={size} is too small: the 256 bytes and"
      f" {len(FIRST_PIECES + LAST_PIECES)} special tokens must have pieces;"
      " RoBERTa has 50265."
    )
  trainer = trainers.BpeTrainer(
    vocab_size=max_learnt_pieces,
    min_frequency=MIN_FREQUENCY,
    special_tokens=alphabet,
    show_progress=False,
  )
  tokenizer = Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  tokenizer.train_from_iterator(_repeat_words(sorted(counts), counts), trainer)
  learnt_ids = tokenizer.get_vocab()
  learnt_pieces = sorted(learnt_ids, key=learnt_ids.__getitem__)
  pieces = [*FIRST_PIECES, *learnt_pieces, *LAST_PIECES]
  content = files.parse_json_object(tokenizer.to_str(), "tokenizer")
  merges = [tuple(pair) for pair in content["model"]["merges"]]
  return bpe.build_bytelevel(
    {piece: piece_id for piece_id, piece in enumerate(pieces)}, merges
  )


def train_unigram(
  texts: Iterable[str], size: int, text_cleaning: Cleaning
) -> Vocabulary | None:
  """Returns a tokenizer with ALBERT's special tokens and at most `size` pieces.

  Args:
    texts: the texts, which are read once.
    size: the largest number of pieces, with special tokens (ALBERT: 30,000).
    text_cleaning: how capitals and accents are treated. The model's file stores
      this as normalization rules, which every reader of the file applies.

  Returns:
    The tokenizer; None if there is no text.

  Raises:
    UserError: `size` is too small for the text's characters, or the library is
      not installed.
  """
  try:
    import sentencepiece
  except ImportError as e:
    raise UserError(
      "SentencePiece models need the package sentencepiece: pip install"
      " 'bert_jax[data]'."
    ) from e
  from sentencepiece import sentencepiece_model_pb2

  model_buffer = io.BytesIO()
  has_text = False
  errors: list[BaseException] = []

  def lines() -> Iterator[str]:
    """Yields lines; stores errors of `texts`, as the library hides them."""
    nonlocal has_text
    try:
      for text in texts:
        for line in text.split("\n"):
          if line.strip():
            has_text = True
            line = replace_surrogates(line.replace("\0", " "))
            yield from _cut_line(line)
    except BaseException as e:
      errors.append(e)
      raise

  sentencepiece.set_random_generator_seed(0)
  folder = tempfile.TemporaryDirectory()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=lines(),
      model_writer=model_buffer,
      model_type="unigram",
      vocab_size=size,
      hard_vocab_limit=False,  # A small text gives fewer pieces.
      pad_id=0,
      unk_id=1,
      bos_id=-1,
      eos_id=-1,
      pad_piece="<pad>",
      unk_piece="<unk>",
      control_symbols=list(CONTROL_PIECES),
      user_defined_symbols=list(REQUIRED_PIECES),
      character_coverage=COVERAGE,
      normalization_rule_tsv=_write_rules(folder.name, text_cleaning),
      input_sentence_size=MAX_LINES,
      shuffle_input_sentence=True,
      num_threads=NUM_THREADS,
      minloglevel=2,
    )
  except RuntimeError as e:
    if errors:
      raise errors[0] from None
    if not has_text:
      return None
    raise UserError(f"{_size_name()}={size}: SentencePiece says: {e}") from e
  finally:
    folder.cleanup()
  proto_class: Any = vars(sentencepiece_model_pb2)["ModelProto"]
  proto = proto_class.FromString(model_buffer.getvalue())
  proto.normalizer_spec.name = cleaning.RULE_NAMES[text_cleaning]
  # Remove the name of the temporary file, because this name differs each time.
  proto.normalizer_spec.ClearField("normalization_rule_tsv")
  return unigram.build(proto.SerializeToString(), "the new model")


def _write_rules(folder: str, text_cleaning: Cleaning) -> str:
  """Writes normalization rules in SentencePiece's format; returns the path."""
  path = pathlib.Path(folder, "rules.tsv")
  with path.open("w", encoding="ascii") as file:
    for pair in cleaning.normalization_rules(text_cleaning).items():
      hex_texts = (
        " ".join(f"{ord(character):X}" for character in text) for text in pair
      )
      file.write("\t".join(hex_texts) + "\n")
  return str(path)


def _cut_line(line: str) -> Iterator[str]:
  """Cuts a line into parts of at most `MAX_LINE_CHARS`, at spaces if any."""
  while len(line) > MAX_LINE_CHARS:
    end = line.rfind(" ", 1, MAX_LINE_CHARS)
    end = MAX_LINE_CHARS if end < 0 else end
    yield line[:end]
    line = line[end:]
  yield line


def train_words(
  texts: Iterable[str], size: int, rules: str
) -> Vocabulary | None:
  """Returns a tokenizer with the most frequent words.

  Args:
    texts: the texts, which are read once.
    size: the largest number of pieces, with special tokens.
    rules: one of `words.RULES`.

  Returns:
    The tokenizer; None if there is no text.
  """
  counts = words.count_words(texts, rules)
  if not counts:
    return None
  frequent_words = {
    word: count for word, count in counts.items() if count >= MIN_FREQUENCY
  }
  # A word that is spelled like a special token gets no second piece.
  for special_word in words.SPECIAL_WORDS:
    frequent_words.pop(special_word, None)
  pieces = words.sort_by_count(frequent_words)[
    : size - len(words.SPECIAL_WORDS)
  ]
  return words.build([*words.SPECIAL_WORDS, *pieces], rules=rules)
