"""Tests WordPiece against the published behaviour, on tiny vocabularies."""

import os
import pathlib
import pickle

import numpy as np
import pytest

from bert_jax.text import open_vocabulary, wordpiece
from bert_jax.text.vocabulary import SPECIAL_TOKENS, Vocabulary

SPECIAL_PIECES = list(SPECIAL_TOKENS)


def pieces_of(tokenizer: Vocabulary, text: str) -> list[str]:
  (ids,) = tokenizer.encode_batch([text])
  return [tokenizer.pieces[i] for i in ids]


def tiny_tokenizer(pieces: str, lower_case: bool = True) -> Vocabulary:
  return wordpiece.build(SPECIAL_PIECES + pieces.split(), lower_case)


def test_symbols_outside_punctuation_stay_with_their_word():
  tokenizer = tiny_tokenizer("to send your vote good rush ##ers ! ♥")
  text = "to send your vote♡♡"
  assert pieces_of(tokenizer, text) == ["to", "send", "your", "[UNK]"]
  text = "good Rushers!♥♡"
  assert pieces_of(tokenizer, text) == ["good", "rush", "##ers", "!", "[UNK]"]
  text = "good rushers!♥"
  assert pieces_of(tokenizer, text) == ["good", "rush", "##ers", "!", "♥"]


def test_special_tokens_are_special_only_on_request():
  tokenizer = tiny_tokenizer("i am going to study math [ ] mask sep")
  mask = tokenizer.special.mask
  words = ["i", "am", "going", "to", "study", "math"]
  ids = [tokenizer.pieces.index(word) for word in words]
  expected = [*ids[:4], mask, *ids[3:]]
  assert (
    tokenizer.encode_special("I am going to [MASK] to study math") == expected
  )
  assert (
    tokenizer.encode_special("I am going to[MASK]to study math") == expected
  )
  assert tokenizer.encode_special("[MASK]") == [mask]
  assert tokenizer.encode_special(" [MASK] ") == [mask]
  text_ids = [tokenizer.pieces.index(piece) for piece in ("[", "mask", "]")]
  assert tokenizer.encode_special("[mask]") == text_ids
  assert pieces_of(tokenizer, "[MASK]") == ["[", "mask", "]"]
  assert pieces_of(tokenizer, "a[SEP]") == ["[UNK]", "[", "sep", "]"]


def test_published_vocabularies_give_the_published_ids():
  data_folder = os.environ.get("BERT_JAX_TEST_DATA")
  if not data_folder:
    pytest.skip("BERT_JAX_TEST_DATA names no folder with real data")
  path = pathlib.Path(data_folder, "vocab", "bert-base-uncased-vocab.txt")
  bert = wordpiece.build(open_vocabulary.read_vocab(path))
  ids = bert.encode_special("i am going to [MASK] to study math")
  assert ids == [1045, 2572, 2183, 2000, 103, 2000, 2817, 8785]
  path = pathlib.Path(data_folder, "vocab", "bert-base-cased-vocab.txt")
  with pytest.raises(ValueError, match="no-lower-case"):
    open_vocabulary.load(path)
  cased = open_vocabulary.load(path, lower_case=False)
  assert pieces_of(cased, "The École") == ["The", "École"]


def test_punctuation_splits_everywhere():
  dash_tokenizer = tiny_tokenizer("cretaceous – pale ##ogene")
  text = "Cretaceous–Paleogene"
  assert pieces_of(dash_tokenizer, text) == [
    "cretaceous",
    "–",
    "pale",
    "##ogene",
  ]
  sign_tokenizer = tiny_tokenizer("’ tis $ 5 . 00 don ' t")
  assert pieces_of(sign_tokenizer, "’tis") == ["’", "tis"]
  assert pieces_of(sign_tokenizer, "$5.00") == ["$", "5", ".", "00"]
  assert pieces_of(sign_tokenizer, "don't") == ["don", "'", "t"]


def test_text_is_cleaned_before_it_is_cut():
  tokenizer = tiny_tokenizer("ecole a b 中 文 x")
  assert pieces_of(tokenizer, "École") == ["ecole"]
  assert pieces_of(tokenizer, "中文x") == ["中", "文", "x"]
  assert pieces_of(tokenizer, "a\x00\u200b\ufeff\tb\r\n") == ["a", "b"]
  assert tokenizer.encode_batch(["", " \t", "\x01"]) == [[], [], []]
  cased_tokenizer = tiny_tokenizer("ecole École", lower_case=False)
  assert pieces_of(cased_tokenizer, "École ecole Ecole") == [
    "École",
    "ecole",
    "[UNK]",
  ]


def test_longest_word_has_a_hundred_characters():
  tokenizer = tiny_tokenizer("a ##a")
  assert pieces_of(tokenizer, "a" * 100) == ["a"] + ["##a"] * 99
  assert pieces_of(tokenizer, "a" * 101) == ["[UNK]"]


def test_word_starts_and_text_are_found_from_ids():
  tokenizer = tiny_tokenizer("good rush ##ers !")
  (ids,) = tokenizer.encode_batch(["Good rushers!"])
  expected = np.array([True, True, False, True])
  np.testing.assert_array_equal(tokenizer.find_word_starts(ids), expected)
  assert tokenizer.find_word_starts([]).shape == (0,)
  assert tokenizer.decode(ids) == "good rushers !"
  assert tokenizer.decode([]) == ""


def test_a_pickled_tokenizer_gives_the_same_ids():
  tokenizer = tiny_tokenizer("good rush ##ers !")
  unpickled = pickle.loads(pickle.dumps(tokenizer))
  text = "good rushers [MASK]!"
  assert unpickled.encode_batch([text]) == tokenizer.encode_batch([text])
  assert unpickled.encode_special(text) == tokenizer.encode_special(text)


def test_missing_special_token_is_named():
  with pytest.raises(ValueError, match=r"v\.txt.*no \[CLS\], \[MASK\]"):
    wordpiece.build(["[PAD]", "[UNK]", "[SEP]", "a"], source="v.txt")
