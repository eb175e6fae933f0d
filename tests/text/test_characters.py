"""Tests ELMo's characters: ids of words, offsets, and seqio's vocabulary."""

import pickle

import numpy as np
import pytest

from bert_jax.text import characters
from bert_jax.text.characters import MAX_CHARS, Characters

TEXTS = [
  "",
  " \t\n",
  "a",
  "  Two words\u00a0here,\u3000three ",
  "h\u00e9 \u4e2d\u6587 \U0001f600 e\u0301 \x00 \x01",
  "x" * 48 + " " + "y" * 49 + " " + "z" * 10_000,
  "\u4e2d" * 16 + " " + "\u4e2d" * 17,
  "<S> is text </S>",
]


def reference_row(word):
  """Returns what _convert_word_to_char_ids of bilm/data.py gives, plus 1.

  There, 258 begins a word, 259 ends it, and 260 fills the row of 50 ids.
  """
  row = [260] * 50
  row[0] = 258
  encoded = word.encode("utf-8", "ignore")[:48]
  for column, byte in enumerate(encoded, start=1):
    row[column] = byte
  row[len(encoded) + 1] = 259
  return [byte_id + 1 for byte_id in row]


def test_each_word_gives_one_row_of_character_ids():
  word_encoder, sentence_encoder = (
    Characters(),
    Characters(adds_sentence_ends=True),
  )
  for text, ids, ids_with_ends in zip(
    TEXTS,
    word_encoder.encode_batch(TEXTS),
    sentence_encoder.encode_batch(TEXTS),
    strict=True,
  ):
    assert ids.dtype == np.int32 and ids.shape == (len(text.split()), 50)
    assert ids.tolist() == [reference_row(word) for word in text.split()]
    begin_row = characters.word_ids(characters.BEGIN_SENTENCE)
    end_row = characters.word_ids(characters.END_SENTENCE)
    np.testing.assert_array_equal(ids_with_ends[1:-1], ids)
    assert (
      ids_with_ends[0].tolist() == begin_row
      and ids_with_ends[-1].tolist() == end_row
    )
    np.testing.assert_array_equal(
      characters.sentence_ids(text.split(), adds_sentence_ends=True),
      ids_with_ends,
    )
  assert word_encoder.encode_batch([]) == []
  unpickled = pickle.loads(pickle.dumps(sentence_encoder))
  assert (
    unpickled == sentence_encoder != word_encoder
    and word_encoder.vocab_size == 262
  )


def test_lone_surrogates_have_no_bytes():
  """The published program encodes words with errors="ignore"."""
  (ids,) = Characters().encode_batch(["a\ud800b \udfff"])
  assert ids.tolist() == [reference_row("ab"), reference_row("")]


def test_offsets_are_slices_of_the_raw_text():
  texts = [*TEXTS, "a\ud800b \udfff", "".join(map(chr, range(0x3100)))]
  for adds_sentence_ends in (False, True):
    vocabulary = Characters(adds_sentence_ends)
    for text, ids, encoded in zip(
      texts,
      vocabulary.encode_batch(texts),
      vocabulary.encode_offsets(texts),
      strict=True,
    ):
      np.testing.assert_array_equal(encoded.ids, ids)
      slices = [text[begin:end] for begin, end in encoded.offsets]
      assert slices == (
        ["", *text.split(), ""] if adds_sentence_ends else text.split()
      )


def test_only_encode_special_reads_sentence_ends_in_a_text():
  vocabulary = Characters()
  ids = vocabulary.encode_special("<S> a </S> <S>a")
  assert ids[:3].tolist() == characters.sentence_ids(["a"]).tolist()
  assert ids[3].tolist() == reference_row("<S>a")
  (ids,) = vocabulary.encode_batch(["<S>"])
  assert ids.tolist() == [reference_row("<S>")]


@pytest.mark.parametrize("adds_sentence_ends", [False, True])
def test_decode_gives_the_words_back(adds_sentence_ends):
  vocabulary = Characters(adds_sentence_ends)
  for text, ids in zip(TEXTS, vocabulary.encode_batch(TEXTS), strict=True):
    words = [
      word.encode()[:48].decode("utf-8", "ignore") for word in text.split()
    ]
    assert vocabulary.decode(ids) == " ".join(words)
    padded_ids = np.concatenate([ids, np.zeros((2, MAX_CHARS), np.int32)])
    assert vocabulary.decode(padded_ids.tolist()) == vocabulary.decode(ids)
  (ids,) = vocabulary.encode_batch(["\u4e2d" * 17])
  assert vocabulary.decode(ids) == "\u4e2d" * 16


@pytest.mark.parametrize("adds_sentence_ends", [False, True])
def test_seqio_vocabulary_gives_the_same_ids(adds_sentence_ends):
  """`encode` and `encode_tf` agree for one string, a batch and a data set."""
  tf = pytest.importorskip("tensorflow", reason="the extra [data] is not there")
  pytest.importorskip("seqio", reason="the extra [data] is not there")
  from bert_jax.seqio_tasks.text_vocabulary import CharacterVocabulary

  vocabulary = CharacterVocabulary(adds_sentence_ends)
  assert (
    vocabulary
    == CharacterVocabulary(adds_sentence_ends)
    != CharacterVocabulary(not adds_sentence_ends)
  )
  assert (
    vocabulary.vocab_size,
    vocabulary.eos_id,
    vocabulary.unk_id,
    vocabulary.pad_id,
  ) == (262, None, None, 0)
  expected = [
    np.reshape(vocabulary.encode(text), (-1, 50)).tolist() for text in TEXTS
  ]
  batch_ids = vocabulary.encode_tf(tf.constant(TEXTS))
  assert batch_ids.dtype == tf.int32 and batch_ids.shape.as_list() == [
    8,
    None,
    50,
  ]
  assert batch_ids.to_list() == expected
  texts = tf.data.Dataset.from_tensor_slices(TEXTS)
  for dataset in (
    texts.batch(8).map(vocabulary.encode_tf).unbatch(),
    texts.map(vocabulary.encode_tf),
  ):
    assert [row.tolist() for row in dataset.as_numpy_iterator()] == expected
  decoded_texts = (
    texts.map(vocabulary.encode_tf)
    .map(vocabulary.decode_tf)
    .as_numpy_iterator()
  )
  assert [text.decode() for text in decoded_texts] == [
    vocabulary.decode(row) for row in expected
  ]
  texts_of_padded_ids = vocabulary.decode_tf(batch_ids.to_tensor()).numpy()
  assert [text.decode() for text in texts_of_padded_ids] == [
    vocabulary.decode(row) for row in expected
  ]
  broken_texts = [b"a\xffb \xc3", b"\xed\xa0\x80"]
  expected = [
    vocabulary.encode(text.decode("utf-8", "replace")) for text in broken_texts
  ]
  assert vocabulary.encode_tf(tf.constant(broken_texts)).to_list() == expected
  assert (
    vocabulary.encode_tf(tf.constant(broken_texts[0])).numpy().tolist()
    == expected[0]
  )


def test_text_instead_of_words_is_refused():
  with pytest.raises(ValueError, match="'a text' is text.*split"):
    characters.make_batch(["a text"])
