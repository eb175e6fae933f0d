"""Makes more examples of a task with a masked language model and word vectors.

The method is from Jiao et al. 2020, section 3.2 and algorithm 1. The details
are from the released program (huawei-noah/Pretrained-Language-Model TinyBERT
data_augmentation.py). Words of ASCII letters, except stop words, are replaced
at random:

| word | its replacement |
| --- | --- |
| with one piece | a word that the model predicts at the masked position |
| with several pieces | a word whose vector is near |
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax import hashing
from bert_jax.tasks.encoded_rows import Rows
from bert_jax.text.vocabulary import SpecialIds, Vocabulary
from bert_jax.use import predict
from bert_jax.use.predict import Predictor
from bert_jax.use.word_vectors import WordVectors

# The number of examples that are read and processed together.
CHUNK_SIZE = 256
# The stop words of the released program. Words with an apostrophe are left out,
# because the tokenizer splits them into several words.
_STOP_WORDS = """
  a about above after again against ain all am an and any are aren as at be
  because been before being below between both but by can couldn d did didn do
  does doesn doing don down during each few for from further had hadn has hasn
  have haven having he her here hers herself him himself his i if in into is isn
  it its itself just ll m ma me mightn more most mustn my myself needn no nor
  not now o of off on once only or other our ours ourselves out over own re s
  same shan she should shouldn so some such t than that the their theirs them
  themselves then there these they this those through to too under until up ve
  very was wasn we were weren while will with won wouldn y you your yours
  yourself yourselves
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
_ASCII_WORD = re.compile("[a-z]+")
_SPECIAL_TOKEN = re.compile(r"\[.+\]")

# Index of a word in its text -> the words that may replace it.
WordCandidates = dict[int, list[str]]


class Options(NamedTuple):
  """Says how examples are made.

  Attributes:
    num_samples: the number of variants that are drawn for each text. Equal
      variants are written once.
    threshold: the probability that a word is replaced.
    num_candidates: the number of candidates that are looked up for a word.
      Pieces that do not begin a word are then left out, so that fewer
      candidates may remain.
    seed: the seed of all draws.
  """

  num_samples: int = 20
  threshold: float = 0.4
  num_candidates: int = 15
  seed: int = 0


class Example(NamedTuple):
  """Holds a line of a task's file.

  Attributes:
    texts: one or two texts.
    label: the label, as the file has it.
  """

  texts: tuple[str, ...]
  label: str


@dataclasses.dataclass(frozen=True)
class SplitText:
  """Holds a text that is split into words.

  Attributes:
    words: the words into which the tokenizer splits the text.
    ids: int32 [T], the ids of all pieces of the words.
    starts: int64 [words + 1], the index in `ids` at which each word begins.
  """

  words: list[str]
  ids: np.ndarray
  starts: np.ndarray


def split_into_words(
  vocabulary: Vocabulary, texts: Sequence[str]
) -> list[SplitText]:
  """Splits texts into the words that WordPiece cuts into pieces."""
  split_texts = []
  unknown_id = vocabulary.special.unk
  for text, (ids, offsets) in zip(
    texts, vocabulary.encode_offsets(texts), strict=True
  ):
    words: list[str] = []
    starts: list[int] = []
    for position, (token_id, (begin, end)) in enumerate(
      zip(ids, offsets, strict=True)
    ):
      piece = vocabulary.pieces[token_id]
      # An unknown word keeps its text, in lower case if the vocabulary has only
      # lower case.
      if token_id == unknown_id:
        piece = text[begin:end]
        piece = piece.lower() if vocabulary.lower_case else piece
      if vocabulary.at_word_boundary[token_id]:
        words.append(piece)
        starts.append(position)
      else:
        words[-1] += piece.removeprefix("##")
    starts.append(len(ids))
    split_texts.append(
      SplitText(words, np.array(ids, np.int32), np.array(starts))
    )
  return split_texts


def is_replaceable(word: str) -> bool:
  """Returns True if a word has only ASCII letters and is no stop word."""
  lower_word = word.lower()
  return (
    bool(_ASCII_WORD.fullmatch(lower_word)) and lower_word not in STOP_WORDS
  )


def masked_rows(
  masks: Sequence[tuple[np.ndarray, int]], special: SpecialIds, length: int
) -> tuple[Rows, np.ndarray]:
  """Makes a row for each mask; its second segment is the unmasked text.

  The released program does this (data_augmentation.py, _masked_language_model).
  The paper does not mention that the model also sees the unmasked text.

  Args:
    masks: for each row, the ids of a text and the index of the id to mask.
    special: the special ids of the vocabulary.
    length: the largest number of tokens in a row.

  Returns:
    The rows, and the position of the mask in each row, int32 [N].
  """
  row_ids, second_begins_of_rows = [], []
  for ids, index in masks:
    row = np.array([special.cls, *ids, special.sep, *ids, special.sep])[:length]
    row[1 + index] = special.mask
    row_ids.append(row.astype(np.int32))
    second_begins_of_rows.append(min(len(ids) + 2, length))
  rows = Rows(
    ids=np.concatenate([np.zeros(0, np.int32), *row_ids]),
    starts=np.cumsum([0, *map(len, row_ids)], dtype=np.int64),
    second_begins=np.array(second_begins_of_rows, np.int32),
    example_indices=np.arange(len(masks)),
    labels=np.full(len(masks), -1, np.int32),
    offsets=np.zeros((0, 2), np.int32),
  )
  return rows, np.array([1 + index for _, index in masks], np.int32)


def predict_words(
  predictor: Predictor,
  masks: Sequence[tuple[np.ndarray, int]],
  report: Callable[[float], None] | None = None,
) -> list[list[str]]:
  """Returns the most likely words for each mask.

  Special tokens and pieces that do not begin a word are left out. The released
  program keeps special tokens.

  Args:
    predictor: a predictor that fills masks.
    masks: see `masked_rows`.
    report: called with the share of the masks done so far.
  """
  vocabulary = predictor.vocabulary
  rows, positions = masked_rows(masks, vocabulary.special, predictor.max_length)

  def report_share(num_done: int) -> None:
    if report:
      report(num_done / len(masks))

  words_by_mask = []
  for candidate_pairs in predict.compute_outputs(
    predictor, rows, positions, report_share
  ):
    # A model may have more word embeddings than its vocabulary has pieces.
    all_ids = candidate_pairs[:, 1].astype(int)
    ids = [i for i in all_ids if i < vocabulary.vocab_size]
    pieces = [
      vocabulary.pieces[i] for i in ids if vocabulary.at_word_boundary[i]
    ]
    words_by_mask.append([p for p in pieces if not _SPECIAL_TOKEN.fullmatch(p)])
  return words_by_mask


def find_candidates(
  predictor: Predictor,
  vectors: WordVectors | None,
  texts: Sequence[SplitText],
  count: int,
  report: Callable[[float], None] | None = None,
) -> list[WordCandidates]:
  """Finds the words that may replace each word of each text.

  Args:
    predictor: a predictor that fills each mask with `count` candidates.
    vectors: the vectors of words. None leaves words with several pieces
      unchanged.
    texts: the texts, from `split_into_words`.
    count: the largest number of near words for a word.
    report: called with the share of the masks done so far.

  Returns:
    For each text, the candidates of the words that may change. If no word is
    found for a word, the word itself is its only candidate.
  """
  # The place of a mask: the index of its text, and of its word in the text.
  masks, places = [], []
  candidates_by_text: list[WordCandidates] = [{} for _ in texts]
  for text_index, text in enumerate(texts):
    for word_index, word in enumerate(text.words):
      if not is_replaceable(word):
        continue
      start, end = (
        int(text.starts[word_index]),
        int(text.starts[word_index + 1]),
      )
      candidates_by_text[text_index][word_index] = [word]
      if end - start > 1:
        near_words = vectors.nearest(word, count) if vectors else []
        candidates_by_text[text_index][word_index] = near_words or [word]
      elif 1 + start < predictor.max_length:
        masks.append((text.ids, start))
        places.append((text_index, word_index))
  for (text_index, word_index), words in zip(
    places, predict_words(predictor, masks, report), strict=True
  ):
    if words:
      candidates_by_text[text_index][word_index] = words
  return candidates_by_text


def draw_variants(
  text: str,
  words: Sequence[str],
  word_candidates: WordCandidates,
  options: Options,
  example_number: int,
  text_number: int,
) -> list[str]:
  """Returns the raw text, and then the distinct sentences drawn from it.

  Args:
    text: the raw text.
    words: the words of the text.
    word_candidates: the words that may replace each word.
    options: how variants are drawn.
    example_number: the number of the example, a key of the draws.
    text_number: the number of the text in its example, a key of the draws.
  """
  sentences = dict.fromkeys([text])
  word_indices = np.array(sorted(word_candidates), np.int64)
  draw_numbers = (
    np.arange(options.num_samples)[:, None] * len(words) + word_indices
  )
  candidate_counts = np.array(
    [len(word_candidates[word_index]) for word_index in word_indices], np.int64
  )
  replace_key = hashing.make_key("augment", options.seed, text_number, "which")
  choice_key = hashing.make_key("augment", options.seed, text_number, "what")
  is_replaced = (
    hashing.uniform(replace_key, example_number, draw_numbers)
    < options.threshold
  )
  choices = hashing.randint(
    choice_key, example_number, draw_numbers, candidate_counts
  )
  for i in range(options.num_samples):
    sentence = list(words)
    for word_index, is_word_replaced, choice in zip(
      word_indices, is_replaced[i], choices[i], strict=True
    ):
      if is_word_replaced:
        sentence[word_index] = word_candidates[word_index][choice]
    sentences.setdefault(" ".join(sentence))
  return [sentence for sentence in sentences if sentence or sentence == text]


def add_variants(
  predictor: Predictor,
  vectors: WordVectors | None,
  options: Options,
  examples: Iterable[Example],
  report: Callable[[int], None] | None = None,
) -> Iterator[Example]:
  """Yields each example and its variants, in order.

  A variant of a pair changes only one of the two texts. (The released program
  combines the variants of the second text with the last variant of the first
  text.)

  Args:
    predictor: a predictor that fills each mask with `options.num_candidates`
      candidates.
    vectors: see `find_candidates`.
    options: how variants are drawn.
    examples: the examples. Their numbers, from 0, are keys of the draws.
    report: called with the number of examples whose words are predicted so far.
  """
  example_number = 0
  for chunk in predict.chunks(iter(examples), CHUNK_SIZE):

    def report_share(
      share: float, start: int = example_number, size: int = len(chunk)
    ) -> None:
      if report:
        report(start + int(share * size))

    texts = list(
      dict.fromkeys(text for example in chunk for text in example.texts)
    )
    split_texts = split_into_words(predictor.vocabulary, texts)
    chunk_candidates = find_candidates(
      predictor, vectors, split_texts, options.num_candidates, report_share
    )
    words_and_candidates = {
      text: (split_text.words, word_candidates)
      for text, split_text, word_candidates in zip(
        texts, split_texts, chunk_candidates, strict=True
      )
    }
    for example in chunk:
      yield example
      yield from _variants_of(
        example, words_and_candidates, options, example_number
      )
      example_number += 1


def _variants_of(
  example: Example,
  words_and_candidates: Mapping[str, tuple[list[str], WordCandidates]],
  options: Options,
  example_number: int,
) -> Iterator[Example]:
  """Yields the variants of an example without the example itself."""
  for text_number, text in enumerate(example.texts):
    words, word_candidates = words_and_candidates[text]
    sentences = draw_variants(
      text, words, word_candidates, options, example_number, text_number
    )
    texts_before, texts_after = (
      example.texts[:text_number],
      example.texts[text_number + 1 :],
    )
    for sentence in sentences[1:]:
      yield example._replace(texts=(*texts_before, sentence, *texts_after))
