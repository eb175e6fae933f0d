"""Tests tokenizers of all kinds: ids, offsets, words, special tokens, files."""

import itertools
import json
import os
import pickle

import numpy as np
import pytest
from tiny_vocabularies import (
  SPECIAL_LIST,
  bert_vocabulary,
  gpt1_vocabulary,
  pieces_and_slices,
  random_texts,
  roberta_vocabulary,
)

from bert_jax.text import open_vocabulary, unigram, wordpiece

DATA_FOLDER = os.environ.get("BERT_JAX_TEST_DATA")
needs_data = pytest.mark.skipif(
  not DATA_FOLDER, reason="BERT_JAX_TEST_DATA names no folder with vocabularies"
)


@pytest.mark.parametrize("rules", wordpiece.RULES)
def test_symbols_stay_with_their_word(rules):
  """A heart is a symbol, so it is not split off its word."""
  vocabulary = bert_vocabulary("to send your vote good rush ##ers ! ♥", rules)
  assert pieces_and_slices(vocabulary, "to send your vote♡♡")[-1] == (
    "[UNK]",
    "vote♡♡",
  )
  pieces = [
    piece for piece, _ in pieces_and_slices(vocabulary, "good Rushers!♥♡")
  ]
  assert pieces == ["good", "rush", "##ers", "!", "[UNK]"]
  assert pieces_and_slices(vocabulary, "good rushers!♥")[-1] == ("♥", "♥")


@pytest.mark.parametrize("rules", wordpiece.RULES)
def test_dashes_and_quotes_stand_alone(rules):
  """A dash and a quote are pieces of their own, with offsets of their own."""
  vocabulary = bert_vocabulary(
    "cretaceous – pale ##ogene ’ tis $ 5 . 00 don ' t", rules
  )
  (encoded,) = vocabulary.encode_offsets(["Cretaceous–Paleogene"])
  pieces = [vocabulary.pieces[i] for i in encoded.ids]
  assert pieces == ["cretaceous", "–", "pale", "##ogene"]
  assert encoded.offsets == [(0, 10), (10, 11), (11, 15), (15, 20)]
  pieces = [
    piece for piece, _ in pieces_and_slices(vocabulary, "’tis $5.00 don't")
  ]
  assert " ".join(pieces) == "’ tis $ 5 . 00 don ' t"


@pytest.mark.parametrize("rules", wordpiece.RULES)
def test_special_tokens_are_text_by_default(rules):
  """With `with_special=True`, "[MASK]" in a text is the special token.

  The text must have this exact spelling; spaces around it make no difference.
  """
  vocabulary = bert_vocabulary("i [ mask ] to", rules)
  text = "i [MASK]to[mask] [MASK]"
  assert [piece for piece, _ in pieces_and_slices(vocabulary, text)].count(
    "[MASK]"
  ) == 0
  assert pieces_and_slices(vocabulary, text, with_special=True) == [
    ("i", "i"),
    ("[MASK]", "[MASK]"),
    ("to", "to"),
    ("[", "["),
    ("mask", "mask"),
    ("]", "]"),
    ("[MASK]", "[MASK]"),
  ]
  assert vocabulary.encode_special("[MASK]") == [vocabulary.special.mask]


def test_original_rules_differ_from_those_of_hugging_face():
  """The rules differ for private characters, long words and a capital sigma."""
  words = "ab a\u0378b σας " + "x" * 101
  hugging_face_vocabulary, original_vocabulary = (
    bert_vocabulary(words),
    bert_vocabulary(words, "original"),
  )
  # Both rules keep characters that Unicode has not assigned.
  for vocabulary in (hugging_face_vocabulary, original_vocabulary):
    assert [
      piece for piece, _ in pieces_and_slices(vocabulary, "a\u0378b")
    ] == ["a\u0378b"]
  assert [
    piece for piece, _ in pieces_and_slices(hugging_face_vocabulary, "a\ue000b")
  ] == ["ab"]
  assert [
    piece for piece, _ in pieces_and_slices(original_vocabulary, "a\ue000b")
  ] == ["[UNK]"]
  assert pieces_and_slices(hugging_face_vocabulary, "x" * 101)[0][0] == "[UNK]"
  assert pieces_and_slices(original_vocabulary, "x" * 101)[0][0] == "x" * 101
  assert [
    piece for piece, _ in pieces_and_slices(original_vocabulary, "ΣΑΣ")
  ] == ["σας"]
  # The offsets of a letter include a stripped accent after it.
  for vocabulary in (hugging_face_vocabulary, original_vocabulary):
    text = "A\u0301b\u0323\u0301 ab\u0301"
    assert pieces_and_slices(vocabulary, text) == [
      ("ab", text[:5]),
      ("ab", text[6:]),
    ]
  assert wordpiece.clean_by_original_rules(
    "Éa\u200db\t中!", lower_case=True
  ) == (
    "eab 中 !",
    [0, 1, 3, -1, 5, -1, 6],
  )


def test_byte_level_ids_decode_to_the_same_text():
  vocabulary = roberta_vocabulary()
  all_characters = "".join(map(chr, range(1, 0x3000)))
  for text in [*random_texts(500), all_characters, " a  b ", "\U0010ffff"]:
    assert vocabulary.decode(vocabulary.encode_batch([text])[0]) == text
  assert (
    vocabulary.decode(vocabulary.encode_batch(["a\ud800b"])[0]) == "a\ufffdb"
  )


def test_byte_level_pieces_and_offsets():
  vocabulary = roberta_vocabulary()
  assert pieces_and_slices(vocabulary, "the the  an")[:2] == [
    ("the", "the"),
    ("Ġthe", "the"),
  ]
  assert [piece for piece, _ in pieces_and_slices(vocabulary, "the<mask>")] != [
    "the",
    "<mask>",
  ]
  assert pieces_and_slices(vocabulary, "the <mask>", with_special=True)[-1] == (
    "<mask>",
    "<mask>",
  )
  assert (
    vocabulary.special.cls,
    vocabulary.special.pad,
    vocabulary.special.sep,
  ) == (0, 1, 2)
  # A letter of two bytes has two pieces with the same offsets.
  assert [
    text_slice for _, text_slice in pieces_and_slices(vocabulary, "é")
  ] == ["é", "é"]


# Texts in which the ends of words depend on the characters around them.
TEXTS_WITH_CONTEXT = [
  "'ll  's",
  "a  'd",
  "a\u00a0 b",
  "'s\u00e9",
  "\u00e9's",
  " a",
  "a ",
]
TEXTS_WITH_CONTEXT += [
  "  \u0301a",
  "a \u0301",
  "\u0391\u03a3.\u0392",
  "\u0391\u03a3,",
]
TEXTS_WITH_CONTEXT += [
  "\ud800",
  "\x00",
  "a\tb\r\n",
  "x" * 10_000,
  "\u0301" * 200,
  "...'s",
]


@pytest.mark.parametrize(
  "make_vocabulary",
  [
    lambda: bert_vocabulary("the a ##n \u03b1\u03c3 \u03b1\u03c2 \u03b2"),
    lambda: bert_vocabulary(
      "the a ##n \u03b1\u03c3 \u03b1\u03c2 \u03b2", "original"
    ),
    roberta_vocabulary,
    lambda: roberta_vocabulary(add_prefix_space=True),
    gpt1_vocabulary,
  ],
)
def test_batches_give_what_single_texts_give(make_vocabulary):
  """Encodes texts in batches and one by one, some of them twice.

  The ids must be equal: the cache of earlier chunks of text must not change
  them.
  """
  vocabulary, all_texts = (
    make_vocabulary(),
    random_texts(2000) + TEXTS_WITH_CONTEXT,
  )
  ids_of_batch = vocabulary.encode_batch(all_texts)
  flat_ids, lengths = vocabulary.encode_flat(all_texts)
  assert flat_ids.tolist() == list(itertools.chain(*ids_of_batch))
  assert flat_ids.dtype == np.int32
  assert lengths.tolist() == list(map(len, ids_of_batch))
  assert ids_of_batch == [
    encoded.ids for encoded in vocabulary.encode_offsets(all_texts)
  ]
  assert ids_of_batch == vocabulary.encode_batch(all_texts)
  unpickled = pickle.loads(pickle.dumps(vocabulary))
  assert (
    unpickled == vocabulary
    and unpickled.encode_batch(all_texts[::-1]) == ids_of_batch[::-1]
  )
  for text, encoded in zip(
    all_texts, vocabulary.encode_offsets(all_texts), strict=True
  ):
    assert all(0 <= begin <= end <= len(text) for begin, end in encoded.offsets)
    assert encoded.offsets == sorted(encoded.offsets)


@pytest.mark.parametrize(
  "make_vocabulary",
  [lambda: bert_vocabulary("the a ##n"), roberta_vocabulary, gpt1_vocabulary],
)
def test_seqio_vocabularies_agree(make_vocabulary):
  tf = pytest.importorskip("tensorflow", reason="the extra [data] is not there")
  pytest.importorskip("seqio", reason="the extra [data] is not there")
  from bert_jax.seqio_tasks.text_vocabulary import TextVocabulary

  vocabulary, all_texts = (
    TextVocabulary(make_vocabulary),
    [text for text in random_texts(300) if text] + [""],
  )
  expected = [vocabulary.encode(text) for text in all_texts]
  assert vocabulary.encode_tf(tf.constant(all_texts)).to_list() == expected
  dataset = tf.data.Dataset.from_tensor_slices(all_texts).repeat(4)
  # Four threads share one tokenizer.
  encoded_texts = (
    dataset.batch(50).map(vocabulary.encode_tf, num_parallel_calls=4).unbatch()
  )
  assert [
    row.tolist() for row in encoded_texts.as_numpy_iterator()
  ] == expected * 4
  decoded_texts = (
    dataset.take(len(all_texts))
    .map(vocabulary.encode_tf)
    .map(vocabulary.decode_tf)
  )
  decoded = [text.decode() for text in decoded_texts.as_numpy_iterator()]
  assert decoded == [vocabulary.decode(ids) for ids in expected]
  broken_bytes = b"the \xff\xc3"
  expected_ids = vocabulary.encode(broken_bytes.decode("utf-8", "replace"))
  assert (
    vocabulary.encode_tf(tf.constant(broken_bytes)).numpy().tolist()
    == expected_ids
  )


def test_words_of_sentence_pieces_begin_as_published():
  """Tests the rule of ALBERT's published program.

  It is `_is_start_piece_sp` of google-research/albert
  create_pretraining_data.py.
  """
  pieces_that_begin_a_word = [
    "▁the",
    "▁",
    "<pad>",
    ",",
    "-",
    "'",
    "25",
    "n't",
    "é",
    "ß",
    "_",
    "日",
  ]
  pieces_inside_a_word = ["ing", "S", ".com", "e-", "--", "[a]"]
  assert all(
    unigram.begins_word(piece, "albert") for piece in pieces_that_begin_a_word
  )
  assert not any(
    unigram.begins_word(piece, "albert") for piece in pieces_inside_a_word
  )


def test_words_of_sentence_pieces_begin_with_a_space_in_any_script():
  pieces_that_begin_a_word = [
    "▁the",
    "▁",
    "▁слово",
    "▁단어",
    "▁5",
    "▁,",
    *unigram.ALBERT_TOKENS.values(),
  ]
  pieces_inside_a_word = [
    "ing",
    ",",
    "'",
    "25",
    "é",
    "日",
    "во",
    "어",
    "ी",
    "<s>",
    "_",
  ]
  assert all(map(unigram.begins_word, pieces_that_begin_a_word))
  assert not any(map(unigram.begins_word, pieces_inside_a_word))


def test_the_first_piece_of_a_text_starts_a_word():
  """Even a piece that is spelled like one inside a word starts a word there."""
  vocabulary = roberta_vocabulary()
  (ids,) = vocabulary.encode_batch(["than the an"])
  is_word_start = (
    vocabulary.find_word_starts(np.array(ids)).astype(int).tolist()
  )
  assert [vocabulary.pieces[i] for i in ids] == ["th", "an", "Ġthe", "Ġa", "n"]
  assert is_word_start == [1, 0, 1, 1, 0]
  (ids,) = bert_vocabulary("a ##n the").encode_batch(["an the"])
  assert bert_vocabulary("a ##n the").find_word_starts(ids).tolist() == [
    True,
    False,
    True,
  ]
  vocabulary = gpt1_vocabulary()
  (ids,) = vocabulary.encode_batch(["cat bat."])
  assert [vocabulary.pieces[i] for i in ids] == [
    "cat</w>",
    "b",
    "at</w>",
    ".</w>",
  ]
  assert vocabulary.find_word_starts(ids).tolist() == [True, True, False, True]


def test_a_saved_tokenizer_equals_the_loaded_one(tmp_path):
  for name, vocabulary in dict(
    bert=bert_vocabulary("a b"),
    roberta=roberta_vocabulary(),
    gpt=gpt1_vocabulary(),
  ).items():
    folder = tmp_path / name
    folder.mkdir()
    open_vocabulary.save(vocabulary, folder)
    loaded = open_vocabulary.load(folder)
    assert loaded == vocabulary and loaded.options == vocabulary.options
    assert loaded.encode_batch(random_texts(50)) == vocabulary.encode_batch(
      random_texts(50)
    )
    # Add tokenizer.json, as transformers writes it for this tokenizer.
    (folder / "tokenizer.json").write_text(
      vocabulary.special_tokenizer.to_str(), encoding="utf-8"
    )
    loaded_from_json = open_vocabulary.load(str(folder))
    assert (
      loaded_from_json.algorithm == vocabulary.algorithm
      and loaded_from_json.special == vocabulary.special
    )
    assert loaded_from_json.encode_batch(
      random_texts(50)
    ) == vocabulary.encode_batch(random_texts(50))
    assert (
      loaded_from_json.at_word_boundary.tolist()
      == vocabulary.at_word_boundary.tolist()
    )
    assert loaded_from_json.marks_word_ends == vocabulary.marks_word_ends
    # Both cut texts into equal chunks.
    assert (loaded_from_json.chunk_pattern, loaded_from_json.uncut_pattern) == (
      vocabulary.chunk_pattern,
      vocabulary.uncut_pattern,
    )
    assert loaded_from_json.normalize_ascii == vocabulary.normalize_ascii
  (tmp_path / "bert" / "tokenizer.json").unlink()
  original = open_vocabulary.load(str(tmp_path / "bert"), rules="original")
  assert original.options["rules"] == "original"


def test_bad_files_are_named(tmp_path):
  def write(name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return str(tmp_path / name)

  def assert_refused(path, message, **options):
    with pytest.raises(ValueError, match=message):
      open_vocabulary.load(path, **options)

  assert_refused(
    str(tmp_path / "none"), "there is no vocabulary .*none.*`bert_jax vocab`"
  )
  assert_refused(str(tmp_path), "has no vocabulary; put one of these files")
  assert_refused(write("vocab.txt", "a\nb\n"), r"has no \[PAD\]")
  good_path = write("good.txt", "\n".join(SPECIAL_LIST) + "\na\n")
  assert_refused(
    good_path, "has no option 'add_prefix_space'", add_prefix_space=True
  )
  assert_refused(good_path, "rules 'old' is not one of", rules="old")
  pieces_path = write("vocab.json", json.dumps({"a": 0, "b": 0}))
  assert_refused(pieces_path, "has no merges in its folder")
  merges_path = write("merges.txt", "#version: 0.2\na b c\n")
  assert_refused(pieces_path, f"{merges_path}:2: 'a b c' is not a pair")
  write("merges.txt", "a b\n")
  assert_refused(pieces_path, "ids must be different")
  write("vocab.json", json.dumps({"a": 0, "b": 1}))
  assert_refused(pieces_path, "254 of the 256 bytes")
  write("vocab.json", "[1")
  assert_refused(pieces_path, "vocab.json:1 is not JSON")
  assert_refused(
    write("x.model", "no"), "is not a SentencePiece model|sentencepiece"
  )
  model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
  content = {"version": "1.0", "model": model}
  assert_refused(
    write("tokenizer.json", json.dumps(content)),
    "its model WordLevel is not one of",
  )
  (tmp_path / "b.txt").write_bytes(b"a\xff")
  assert_refused(str(tmp_path / "b.txt"), r"not UTF-8 \(byte 1\)")


@needs_data
def test_published_vocabularies_have_their_sizes_and_ids():
  """Opens the vocabularies of BERT, GPT-2 and GPT, and one like ALBERT's."""
  vocabularies = {}
  for name, path in {
    "uncased": "bert-base-uncased-vocab.txt",
    "gpt2": "gpt2/encoder.json",
    "gpt1": "gpt1/encoder_bpe_40000.json",
    "albert": "albert_like/30k-clean.model",
  }.items():
    vocabularies[name] = open_vocabulary.load(f"{DATA_FOLDER}/vocab/{path}")
  sizes = {
    name: vocabulary.vocab_size for name, vocabulary in vocabularies.items()
  }
  assert sizes == dict(uncased=30522, gpt2=50257, gpt1=40478, albert=30000)
  text = "i am going to [MASK] to study math"
  ids = vocabularies["uncased"].encode_special(text)
  assert ids == [1045, 2572, 2183, 2000, 103, 2000, 2817, 8785]
  gpt2 = vocabularies["gpt2"]
  assert gpt2.encode_batch(["Hello world"]) == [[15496, 995]]
  albert = vocabularies["albert"]
  assert albert.special == (0, 1, 2, 3, 4)
  assert albert.special_tokenizer.token_to_id("[MASK]") == 4
  # In the text of a corpus, the name of a special token is ordinary text.
  (ids,) = albert.encode_batch(["<pad> [MASK] [CLS] <unk>"])
  assert not {0, 2, 3, 4} & set(ids)
  assert albert.encode_special("<pad>[MASK]") == [0, 4]
  ids_of_words = albert.encode_batch(["Testing masking"])[0]
  pieces = [albert.pieces[i] for i in ids_of_words]
  assert albert.find_word_starts(ids_of_words).tolist() == [
    piece.startswith(unigram.SPACE) for piece in pieces
  ]
  path = f"{DATA_FOLDER}/vocab/albert_like/30k-clean.model"
  albert = open_vocabulary.load(path, word_starts="albert")
  (ids,) = albert.encode_batch(["masking, don't re-mask 25ths"])
  pieces_and_starts = zip(
    (albert.pieces[i] for i in ids), albert.find_word_starts(ids), strict=True
  )
  assert [
    piece
    for piece, begins_word in pieces_and_starts
    if not begins_word and piece in ",'-"
  ] == []
