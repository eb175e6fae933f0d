"""Filters of text: what each sees in a document, by hand."""

import random

import numpy as np
import pytest

pytest.importorskip("datasketch", reason="the extra [data] is not there")

from bert_jax.data import filtering
from bert_jax.data import filters as rules
from bert_jax.data.filters import Filters
from bert_jax.data.sources import Record

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def made_of(*words: int) -> str:
  """Numbers as words of four letters: any two texts share what is meant."""
  return " ".join(
    "".join(LETTERS[w // 26**i % 26] for i in range(4)) for w in words
  )


def jaccard(one: str, other: str) -> float:
  """Straight from the definition."""
  sets = []
  for text in (one, other):
    words = text.lower().split()
    sets.append({tuple(words[i : i + 5]) for i in range(len(words) - 4)})
  return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def test_shares_by_hand():
  share = rules.symbol_share
  assert share("") == share("Plain, «text» 12% naïve!\t\n") == 0
  assert share("a|b$") == 0.5
  # Vowel signs and viramas are marks of letters; U+FFFD and controls are not.
  assert share("हिन्दी नमस्ते") == 0
  assert share("ab\ufffd\x00") == 0.5

  def repetition(words: list[str]) -> float:
    return rules.repetition(words, rules.shingles(words))

  assert repetition("one two three four five".split()) == 0
  # The second run of five words is repeated, the first is not.
  twice = "aa bb cc dd ee x aa bb cc dd ee".split()
  assert repetition(twice) == 10 / 21
  # Overlapping 5-grams count a word once: 10 of 18 words of one letter.
  assert repetition(list("abcde" * 3 + "xyz")) == 10 / 18
  assert repetition(list("aaaaaaa")) == 6 / 7
  assert rules.words_of("It's 3 O’clock, naïve_ONE!") == [
    *("it", "s", "3", "o", "clock", "naïve_one")
  ]


def test_shingles_are_equal_where_words_are():
  draw = random.Random(0)
  words = [draw.choice("abc") for _ in range(2000)]
  hashes = rules.shingles(words)
  tuples = [tuple(words[i : i + 5]) for i in range(1996)]
  assert hashes.shape == (1996,) and hashes.dtype == np.uint64
  assert len(set(hashes.tolist())) == len(set(tuples))
  assert len(set(zip(hashes.tolist(), tuples, strict=True))) == len(set(tuples))
  assert len(rules.shingles([])) == 0
  assert len(rules.shingles(["one"])) == len(rules.shingles(["a"] * 5)) == 1
  # A value that every process and machine must get.
  assert rules.shingles("a b c d e".split()).tolist() == [14716243412670206480]


def test_digests_ignore_only_white_space():
  assert rules.digest("a b\n\nc") == rules.digest(" a\tb c\n")
  assert rules.digest("a b c") != rules.digest("a bc")
  assert rules.digest("a b c") != rules.digest("A b c")


def test_sketches_estimate_the_jaccard_index():
  empty = rules.empty_sketch()
  errors = []
  for shared in range(20, 400, 20):
    one = made_of(*range(400))
    other = made_of(*range(400 - shared, 800 - shared))
    sketches = [
      rules.sketch(empty, rules.shingles(text.split())) for text in (one, other)
    ]
    estimate = np.mean(sketches[0] == sketches[1])
    errors.append(estimate - jaccard(one, other))
  # Of 128 values each; the largest deviation is sqrt(1 / 4 / 128) = 0.044.
  assert np.sqrt(np.mean(np.square(errors))) < 0.05
  assert abs(np.mean(errors)) < 0.03
  assert empty.is_empty()


def test_near_copies_are_found_above_and_kept_below():
  earlier = filtering._Earlier(Filters(near_duplicates=0.7))
  judge = rules.make_judge(Filters(near_duplicates=0.7))

  def verdict(text: str) -> int:
    rows, share = judge([Record(text, "lines", 0.25)])
    assert share == 0.25 and rows["words"] == len(text.split())
    return earlier.judge(rows[0])

  found = {}
  for k in range(60):
    words = list(range(1000 * k, 1000 * k + 300))
    text = made_of(*words)
    assert verdict(text) == 0
    # Every so many-th word is another one: five 5-grams each are new.
    for every in (100, 16):
      changed = [
        500_000 + w if i % every == every // 2 else w
        for i, w in enumerate(words)
      ]
      changed = made_of(*changed)
      found.setdefault(every, []).append(verdict(changed))
      similarity = jaccard(text, changed)
      assert similarity > 0.89 if every == 100 else similarity < 0.54
  near = rules.DROPPING.index("near_duplicates") + 1
  assert set(found[100]) == {near} and set(found[16]) == {0}
  # Nothing to compare is never a copy.
  assert [verdict("| |"), verdict("| |")] == [0, 0]
  # Fewer than five words are compared as a whole.
  assert [verdict("Ah, so!"), verdict("ah so"), verdict("ah no")] == [
    0,
    near,
    0,
  ]
