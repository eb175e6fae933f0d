"""Tests the filters of documents; exact values check what they measure."""

import random
import tracemalloc
import unicodedata

import numpy as np
import pytest
from text_files import text_of_words

pytest.importorskip("datasketch", reason="the extra [data] is not there")

from bert_jax.corpus import filters, lines, sources
from bert_jax.corpus.filters import Filters
from bert_jax.corpus.sources import Record


def jaccard(*texts: str) -> float:
  """Returns the Jaccard index of two texts' 5-grams, by its definition."""
  shingle_sets = []
  for text in texts:
    words = text.lower().split()
    shingle_sets.append(
      {tuple(words[i : i + 5]) for i in range(len(words) - 4)}
    )
  return len(shingle_sets[0] & shingle_sets[1]) / len(
    shingle_sets[0] | shingle_sets[1]
  )


def test_shares_are_those_found_by_hand():
  symbol_share = filters.symbol_share
  assert symbol_share("") == symbol_share("Plain, «text» 12% naïve!\t\n") == 0
  assert symbol_share("a|b$") == 0.5
  # Vowel signs and viramas are no symbols; U+FFFD and controls are symbols.
  assert symbol_share("हिन्दी नमस्ते") == 0
  assert symbol_share("ab\ufffd\x00") == 0.5

  def repetition(words: list[str]) -> float:
    return filters.repetition_share(words, filters.hash_shingles(words))

  assert repetition(["one", "two", "three", "four", "five"]) == 0
  # The five words are repeated once: the repeat has 10 of the 21 letters.
  five_words = ["aa", "bb", "cc", "dd", "ee"]
  assert repetition([*five_words, "x", *five_words]) == 10 / 21
  # A word in several repeated 5-grams is counted once: 10 of 18 letters.
  assert repetition(list("abcde" * 3 + "xyz")) == 10 / 18
  assert repetition(list("aaaaaaa")) == 6 / 7
  assert filters.lower_case_words("It's 3 O’clock, naïve_ONE!") == [
    *("it", "s", "3", "o", "clock", "naïve_one")
  ]


def test_shingles_are_equal_if_words_are():
  rng = random.Random(0)
  words = [rng.choice("abc") for _ in range(2000)]
  hashes = filters.hash_shingles(words)
  word_tuples = [tuple(words[i : i + 5]) for i in range(1996)]
  assert hashes.shape == (1996,) and hashes.dtype == np.uint64
  assert len(set(hashes.tolist())) == len(set(word_tuples))
  assert len(set(zip(hashes.tolist(), word_tuples, strict=True))) == len(
    set(word_tuples)
  )
  assert len(filters.hash_shingles([])) == 0
  assert (
    len(filters.hash_shingles(["one"]))
    == len(filters.hash_shingles(["a"] * 5))
    == 1
  )
  # Every process and machine must get this value.
  assert filters.hash_shingles(list("abcde")).tolist() == [14716243412670206480]


def test_digests_ignore_only_white_space():
  assert filters.text_digest("a b\n\nc") == filters.text_digest(" a\tb c\n")
  assert filters.text_digest("a b c") != filters.text_digest("a bc")
  assert filters.text_digest("a b c") != filters.text_digest("A b c")


def test_sketches_estimate_the_jaccard_index():
  empty_sketch = filters.empty_sketch()
  errors_of_estimates = []
  for num_shared_words in range(20, 400, 20):
    texts = (
      text_of_words(*range(400)),
      text_of_words(*range(400 - num_shared_words, 800 - num_shared_words)),
    )
    sketches = [
      filters.make_sketch(empty_sketch, filters.hash_shingles(text.split()))
      for text in texts
    ]
    estimated_index = np.mean(sketches[0] == sketches[1])
    errors_of_estimates.append(estimated_index - jaccard(*texts))
  # A sketch has 128 values, so the standard deviation is at most
  # sqrt(1 / 4 / 128) = 0.044.
  assert np.sqrt(np.mean(np.square(errors_of_estimates))) < 0.05
  assert abs(np.mean(errors_of_estimates)) < 0.03
  assert empty_sketch.is_empty()


def test_only_copies_above_the_threshold_are_found():
  earlier = filters._EarlierDocuments(Filters(near_duplicates=0.7))
  judge = filters.make_judge(Filters(near_duplicates=0.7))

  def verdict(text: str) -> int:
    rows, share = judge([Record(text, layout="lines", share=0.25)])
    assert share == 0.25 and rows["words"] == len(text.split())
    return earlier.judge(rows[0])

  verdicts_by_interval = {}
  for number in range(60):
    words = list(range(1000 * number, 1000 * number + 300))
    text = text_of_words(*words)
    assert verdict(text) == 0
    # Change every 100th or 16th word; each change affects five 5-grams.
    for interval in (100, 16):
      changed_words = [
        500_000 + word_number if i % interval == interval // 2 else word_number
        for i, word_number in enumerate(words)
      ]
      changed_text = text_of_words(*changed_words)
      verdicts_by_interval.setdefault(interval, []).append(
        verdict(changed_text)
      )
      similarity = jaccard(text, changed_text)
      assert similarity > 0.89 if interval == 100 else similarity < 0.54
  # A verdict is 0 for a kept document. Otherwise it is the number of the filter
  # that dropped the document, counted from 1.
  near_copy_verdict = filters.DROPPING_FILTERS.index("near_duplicates") + 1
  assert set(verdicts_by_interval[100]) == {near_copy_verdict} and set(
    verdicts_by_interval[16]
  ) == {0}
  # A document without words is never a copy.
  assert [verdict("| |"), verdict("| |")] == [0, 0]
  # Texts of fewer than five words are compared as a whole.
  assert [verdict("Ah, so!"), verdict("ah so"), verdict("ah no")] == [
    0,
    near_copy_verdict,
    0,
  ]


@pytest.mark.parametrize("form", filters.NORMAL_FORMS)
def test_text_is_normalised_in_blocks(monkeypatch, form):
  """Text normalised block by block equals text normalised at once."""
  rng = random.Random(0)
  # These are letters and marks that normalization changes or composes.
  characters = [
    *map(chr, range(0xC0, 0x180)),
    *map(chr, range(0x300, 0x346)),
    *map(chr, range(0x1100, 0x1113)),
    *map(chr, range(0x1160, 0x1178)),
    *map(chr, range(0x11A7, 0x11C4)),
    *"\u0928\u093c\u09c7\u09be\u09d7\u0b47\u0b57\u0dd9\u0dca\u0dcf\u1025\u102e",
    *"\uac00\uac01\ufdfa\ufb01\uff76\uff9e\u304b\u3099\u0f73\u0f71\u1e9b\u0323",
    *"\U00011131\U00011127\U00011347\U0001133e\ufb2c\u2126\u00a8 a.\n",
  ]
  for block_size in (1, 2, 5):
    monkeypatch.setattr(filters, "_BLOCK_CHARS", block_size)
    for length in range(40):
      for _ in range(30):
        text = "".join(rng.choices(characters, k=length))
        assert filters.normalise_text(text, form) == (
          unicodedata.normalize(form, text)
        )


def test_a_text_that_normalization_lengthens_takes_little_memory():
  """NFKC turns the letter U+FDFA into four words, 18 characters in all."""
  text = "\ufdfa" * 200_000
  judge = filters.make_judge(Filters("NFKC", drop_duplicates=True))
  filters.normalise_text("\ufdfa" * 100_000, "NFKC")  # Fills the caches.
  tracemalloc.start()
  rows, _ = judge([Record(text, layout="lines", share=1.0)])
  _, peak_bytes = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert rows["words"].tolist() == [600_001]
  normalized_text = " ".join(unicodedata.normalize("NFKC", text).split())
  assert rows["digest"].tolist() == [filters.text_digest(normalized_text)]
  # The normalized text takes 7 MB. There are also its blocks, a copy with
  # single spaces, and that copy in UTF-8. A list of its words would take 60 MB.
  assert peak_bytes < 40e6


@pytest.mark.parametrize("layout", ["lines", "wrapped", "paragraphs"])
def test_lines_that_normalization_lengthens_are_cut(layout, monkeypatch):
  monkeypatch.setattr(lines, "MAX_CHARS", 30)
  record = Record("a b\n" + "\ufdfa" * 4, layout=layout, share=1.0)
  grown_record = filters.normalise_record(record, "NFKC")
  document = sources.split_sentences(grown_record)
  assert " ".join(document).split() == grown_record.text.split()
  if layout == "lines":
    assert max(map(len, document)) <= 30 and document[0] == "a b"
    assert len(document) == 4
