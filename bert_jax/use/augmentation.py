"""More examples of a task from a masked language model and word vectors.

Jiao et al. 2020, section 3.2 and algorithm 1, by the rules of the released
program (huawei-noah/Pretrained-Language-Model TinyBERT data_augmentation.py):
a word of ASCII letters that is no stop word may be replaced, one that is one
piece by what the model says at its place, one of several pieces by the words
with the nearest vectors.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax import hashing
from bert_jax.tasks.encoded_rows import Rows
from bert_jax.text.vocabulary import SpecialIds, Vocabulary
from bert_jax.use import predict
from bert_jax.use.predict import Predictor
from bert_jax.use.word_vectors import WordVectors

# Examples whose words are predicted together.
CHUNK = 256
# Those of the released list that have letters alone: a word with an apostrophe
# is never one word here.
STOP_WORDS = frozenset(
  """
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
  """.split()
)
_LETTERS = re.compile("[a-z]+")
_SPECIAL = re.compile(r"\[.+\]")

Candidates = dict[int, list[str]]


class Options(NamedTuple):
  """How examples are made.

  Attributes:
    samples: variants that are drawn of each text; equal ones count once.
    threshold: chance that a word is replaced.
    candidates: words that may replace one, of which those that begin no word
      are left out.
    seed: the seed of all draws.
  """

  samples: int = 20
  threshold: float = 0.4
  candidates: int = 15
  seed: int = 0


class Example(NamedTuple):
  """A line of a task's file.

  Attributes:
    texts: one or two texts.
    label: the label, as the file has it.
  """

  texts: tuple[str, ...]
  label: str


class Split(NamedTuple):
  """A text as its words.

  Attributes:
    words: the words into which the tokenizer splits the text.
    ids: int32 [T], the ids of all their pieces.
    starts: int64 [words + 1], where each word's pieces begin.
  """

  words: list[str]
  ids: np.ndarray
  starts: np.ndarray


def split(vocabulary: Vocabulary, texts: Sequence[str]) -> list[Split]:
  """Cuts texts into the words that WordPiece cuts into pieces."""
  splits = []
  unknown = vocabulary.special.unk
  for text, (ids, offsets) in zip(
    texts, vocabulary.encode_offsets(texts), strict=True
  ):
    words: list[str] = []
    starts: list[int] = []
    for place, (number, (begin, end)) in enumerate(
      zip(ids, offsets, strict=True)
    ):
      piece = vocabulary.pieces[number]
      if number == unknown:
        piece = text[begin:end]
        piece = piece.lower() if vocabulary.lower_case else piece
      if vocabulary.boundary[number]:
        words.append(piece)
        starts.append(place)
      else:
        words[-1] += piece.removeprefix("##")
    starts.append(len(ids))
    splits.append(Split(words, np.array(ids, np.int32), np.array(starts)))
  return splits


def may_change(word: str) -> bool:
  """Returns True if a word has only ASCII letters and is no stop word."""
  lower = word.lower()
  return bool(_LETTERS.fullmatch(lower)) and lower not in STOP_WORDS


def masked_rows(
  jobs: Sequence[tuple[np.ndarray, int]], special: SpecialIds, length: int
) -> tuple[Rows, np.ndarray]:
  """Rows with a piece masked, and the whole text as the second segment.

  As released (data_augmentation.py, _masked_language_model); the paper does not
  say that the model sees the text itself beside.

  Args:
    jobs: the ids of a text, and which of them is masked.
    special: the special ids of the vocabulary.
    length: the most tokens in a row.

  Returns:
    The rows, and the place of each one's mask, int32 [N].
  """
  rows_ids, second = [], []
  for ids, place in jobs:
    row = np.array([special.cls, *ids, special.sep, *ids, special.sep])[:length]
    row[1 + place] = special.mask
    rows_ids.append(row.astype(np.int32))
    second.append(min(len(ids) + 2, length))
  sizes = [len(row_ids) for row_ids in rows_ids]
  rows = Rows(
    np.concatenate([np.zeros(0, np.int32), *rows_ids]),
    np.cumsum([0, *sizes], dtype=np.int64),
    np.array(second, np.int32),
    np.arange(len(jobs)),
    np.full(len(jobs), -1, np.int32),
    np.zeros((0, 2), np.int32),
  )
  return rows, np.array([1 + place for _, place in jobs], np.int32)


def predicted(
  predictor: Predictor, jobs: Sequence[tuple[np.ndarray, int]]
) -> list[list[str]]:
  """The likeliest words at each job's mask, see `masked_rows`.

  Of the model's candidates those are left out that only go on with a word, or
  are special tokens (which the released program keeps).
  """
  vocabulary = predictor.vocabulary
  rows_and_places = masked_rows(jobs, vocabulary.special, predictor.length)
  words = []
  for values in predict.run(predictor, *rows_and_places):
    # A model may have more rows than its vocabulary pieces.
    ids = [i for i in values[:, 1].astype(int) if i < vocabulary.vocab_size]
    pieces = [vocabulary.pieces[i] for i in ids if vocabulary.boundary[i]]
    words.append([p for p in pieces if not _SPECIAL.fullmatch(p)])
  return words


def candidates(
  predictor: Predictor,
  vectors: WordVectors | None,
  texts: Sequence[Split],
  count: int,
) -> list[Candidates]:
  """Finds the words that may replace each word of each text.

  Args:
    predictor: it fills masks with `count` candidates each.
    vectors: None: words of several pieces stay.
    texts: the texts, from `split`.
    count: the number of nearest words.

  Returns:
    Of each text number of a word -> words, the word itself if there is none.
  """
  jobs, places = [], []
  words_by_text: list[Candidates] = [{} for _ in texts]
  for number, (words, ids, starts) in enumerate(texts):
    for i, word in enumerate(words):
      if not may_change(word):
        continue
      words_by_text[number][i] = [word]
      if starts[i + 1] - starts[i] > 1:
        near = vectors.nearest(word, count) if vectors else []
        words_by_text[number][i] = near or [word]
      elif 1 + starts[i] < predictor.length:
        jobs.append((ids, int(starts[i])))
        places.append((number, i))
  for (number, i), words_found in zip(
    places, predicted(predictor, jobs), strict=True
  ):
    if words_found:
      words_by_text[number][i] = words_found
  return words_by_text


def variants(
  text: str,
  words: Sequence[str],
  chosen: Candidates,
  options: Options,
  line: int,
  column: int,
) -> list[str]:
  """A text, and the sentences drawn from it that differ.

  Args:
    text: raw.
    words: the words of the text.
    chosen: number of a word -> what may replace it.
    options: how they are drawn.
    line: number of the example, and of its text (`column`): keys of the draws.
  """
  sentences = dict.fromkeys([text])
  places = np.array(sorted(chosen), np.int64)
  at = np.arange(options.samples)[:, None] * len(words) + places
  key_parts = "augment", options.seed, column
  counts = np.array([len(chosen[i]) for i in places], np.int64)
  replaced = (
    hashing.uniform(hashing.make_key(*key_parts, "which"), line, at)
    < options.threshold
  )
  picked = hashing.randint(
    hashing.make_key(*key_parts, "what"), line, at, counts
  )
  for which, what in zip(replaced, picked, strict=True):
    new = list(words)
    for place, is_replaced, pick in zip(places, which, what, strict=True):
      if is_replaced:
        new[place] = chosen[place][pick]
    sentences.setdefault(" ".join(new))
  return [sentence for sentence in sentences if sentence or sentence == text]


def expand(
  predictor: Predictor,
  vectors: WordVectors | None,
  options: Options,
  examples: Iterable[Example],
) -> Iterator[Example]:
  """Yields each example and its variants, in order.

  Of a pair each text is varied beside the other as it was. (The released
  program puts the second's variants beside the first's last one.)

  Args:
    predictor: it fills masks with `options.candidates` candidates each.
    vectors: see `candidates`.
    options: how they are made.
    examples: whose place is the key of their draws.
  """
  line = 0
  for chunk in predict.chunks(iter(examples), CHUNK):
    texts = list(dict.fromkeys(text for e in chunk for text in e.texts))
    splits = split(predictor.vocabulary, texts)
    candidate_words = candidates(predictor, vectors, splits, options.candidates)
    split_by_text = dict(
      zip(
        texts,
        zip([p.words for p in splits], candidate_words, strict=True),
        strict=True,
      )
    )
    for example in chunk:
      yield example
      yield from _variants(example, split_by_text, options, line)
      line += 1


def _variants(
  example: Example,
  split_by_text: Mapping[str, tuple[list[str], Candidates]],
  options: Options,
  line: int,
) -> Iterator[Example]:
  for column, text in enumerate(example.texts):
    new = variants(text, *split_by_text[text], options, line, column)[1:]
    before, after = example.texts[:column], example.texts[column + 1 :]
    for sentence in new:
      yield example._replace(texts=(*before, sentence, *after))
