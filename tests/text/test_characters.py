"""ELMo's characters: rows of words, offsets, and seqio's form of the same."""

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


def slow_row(word):
  """bilm/data.py, _convert_word_to_char_ids, and one more for each."""
  row = [260] * 50
  row[0] = 258
  encoded = word.encode("utf-8", "ignore")[:48]
  for k, byte in enumerate(encoded, start=1):
    row[k] = byte
  row[len(encoded) + 1] = 259
  return [i + 1 for i in row]


def test_rows_are_those_of_the_words():
  plain, bounded = Characters(), Characters(boundaries=True)
  for text, ids, more in zip(
    TEXTS, plain.encode_batch(TEXTS), bounded.encode_batch(TEXTS), strict=True
  ):
    assert ids.dtype == np.int32 and ids.shape == (len(text.split()), 50)
    assert ids.tolist() == [slow_row(word) for word in text.split()]
    np.testing.assert_array_equal(more[1:-1], ids)
    assert more[0].tolist() == characters.word_ids(characters.BEGIN_SENTENCE)
    assert more[-1].tolist() == characters.word_ids(characters.END_SENTENCE)
    np.testing.assert_array_equal(
      characters.sentence_ids(text.split(), boundaries=True), more
    )
  assert plain.encode_batch([]) == []
  copy = pickle.loads(pickle.dumps(bounded))
  assert copy == bounded != plain and plain.vocab_size == 262


def test_lone_surrogates_have_no_bytes():
  """As published: errors="ignore"."""
  (ids,) = Characters().encode_batch(["a\ud800b \udfff"])
  assert ids.tolist() == [slow_row("ab"), slow_row("")]


def test_offsets_are_slices_of_the_raw_text():
  texts = [*TEXTS, "a\ud800b \udfff", "".join(map(chr, range(0x3100)))]
  for bounded in (False, True):
    v = Characters(bounded)
    for text, ids, encoded in zip(
      texts, v.encode_batch(texts), v.encode_offsets(texts), strict=True
    ):
      np.testing.assert_array_equal(encoded.ids, ids)
      slices = [text[begin:end] for begin, end in encoded.offsets]
      assert slices == (["", *text.split(), ""] if bounded else text.split())


def test_marks_are_special_on_request():
  v = Characters()
  ids = v.encode_special("<S> a </S> <S>a")
  assert ids[:3].tolist() == characters.sentence_ids(["a"]).tolist()
  assert ids[3].tolist() == slow_row("<S>a")
  (ids,) = v.encode_batch(["<S>"])
  assert ids.tolist() == [slow_row("<S>")]


@pytest.mark.parametrize("bounded", [False, True])
def test_decode_gives_the_words_back(bounded):
  v = Characters(bounded)
  for text, ids in zip(TEXTS, v.encode_batch(TEXTS), strict=True):
    words = [w.encode()[:48].decode("utf-8", "ignore") for w in text.split()]
    assert v.decode(ids) == " ".join(words)
    padded = np.concatenate([ids, np.zeros((2, MAX_CHARS), np.int32)])
    assert v.decode(padded.tolist()) == v.decode(ids)
  (ids,) = v.encode_batch(["\u4e2d" * 17])
  assert v.decode(ids) == "\u4e2d" * 16


@pytest.mark.parametrize("bounded", [False, True])
def test_seqio(bounded):
  """Both forms are equal, for strings alone and together, in a data set."""
  tf = pytest.importorskip("tensorflow", reason="the extra [data] is not there")
  pytest.importorskip("seqio", reason="the extra [data] is not there")
  from bert_jax.seqio_tasks.text_vocabulary import CharacterVocabulary

  v = CharacterVocabulary(bounded)
  assert v == CharacterVocabulary(bounded) != CharacterVocabulary(not bounded)
  assert (v.vocab_size, v.eos_id, v.unk_id, v.pad_id) == (262, None, None, 0)
  right = [np.reshape(v.encode(text), (-1, 50)).tolist() for text in TEXTS]
  many = v.encode_tf(tf.constant(TEXTS))
  assert many.dtype == tf.int32 and many.shape.as_list() == [8, None, 50]
  assert many.to_list() == right
  data = tf.data.Dataset.from_tensor_slices(TEXTS)
  for ds in (data.batch(8).map(v.encode_tf).unbatch(), data.map(v.encode_tf)):
    assert [row.tolist() for row in ds.as_numpy_iterator()] == right
  decoded = data.map(v.encode_tf).map(v.decode_tf).as_numpy_iterator()
  assert [x.decode() for x in decoded] == [v.decode(row) for row in right]
  padded = v.decode_tf(many.to_tensor()).numpy()
  assert [x.decode() for x in padded] == [v.decode(row) for row in right]
  broken = [b"a\xffb \xc3", b"\xed\xa0\x80"]
  want = [v.encode(text.decode("utf-8", "replace")) for text in broken]
  assert v.encode_tf(tf.constant(broken)).to_list() == want
  assert v.encode_tf(tf.constant(broken[0])).numpy().tolist() == want[0]


def test_text_is_no_words():
  with pytest.raises(ValueError, match="'a text' is text.*split"):
    characters.batch(["a text"])
