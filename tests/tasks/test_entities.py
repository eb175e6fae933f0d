"""Tests how texts are split into words, and tags are joined to entities."""

import pytest

from bert_jax.tasks.files import requests, tags


@pytest.mark.parametrize(
  "tag_line, expected",
  [
    ("O B-A I-A O B-A", [("A", 1, 3), ("A", 4, 5)]),
    ("B-A B-A I-B I-B", [("A", 0, 1), ("A", 1, 2), ("B", 2, 4)]),
    ("I-A I-A O I-A", [("A", 0, 2), ("A", 3, 4)]),
    ("B-A I-A E-A I-A S-A", [("A", 0, 3), ("A", 3, 4), ("A", 4, 5)]),
    ("B-A I-A L-A U-B", [("A", 0, 3), ("B", 3, 4)]),
    ("B-A M-A E-A W-A", [("A", 0, 3), ("A", 3, 4)]),
    ("B I O I", [("_", 0, 2), ("_", 3, 4)]),
    ("", []),
  ],
)
def test_tags_are_joined_to_entities(tag_line, expected):
  assert tags.entities(tag_line.split()) == expected


def test_a_word_without_a_tag_ends_an_entity():
  assert tags.entities(["B-A", None, "I-A"]) == [("A", 0, 1), ("A", 2, 3)]


@pytest.mark.parametrize(
  "text, words",
  [
    (" in  Oslo.\n", ["in", "Oslo", "."]),
    ('("O\'Brien", said.)', ["(", '"', "O'Brien", '"', ",", "said", ".", ")"]),
    ("@name #tag 50% a_ -5", ["@name", "#tag", "50%", "a_", "-5"]),
    ("wait ... what?!", ["wait", "...", "what", "?", "!"]),
    ("東京。 «là»", ["東京", "。", "«", "là", "»"]),
    ("  ", []),
  ],
)
def test_punctuation_is_split_off_words(text, words):
  spans = requests.split_words(text)
  assert [text[begin:end] for begin, end in spans] == words
