"""Tests that added tokens are read as transformers reads them."""

import itertools
import json
import pickle

import numpy as np
import pytest
from tiny_added_tokens import (
  ADDED_TOKENS,
  DECLARING_FILES,
  MAKE_VOCABULARY,
  TEXTS,
  added_by_id,
  write_model,
)
from tiny_vocabularies import (
  pieces_and_slices,
  write_files,
)
from tokenizers import AddedToken

from bert_jax import messages
from bert_jax.corpus import reader, writer
from bert_jax.examples import recipes
from bert_jax.tasks import questions, tagging
from bert_jax.text import added_tokens, model_tokenizer, open_vocabulary


def read_folder(path):
  return {
    file_path.name: file_path.read_bytes()
    for file_path in path.iterdir()
    if file_path.is_file()
  }


@pytest.mark.parametrize("declaring_file", DECLARING_FILES)
@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "gpt1"])
def test_ids_and_offsets_are_those_of_transformers(
  family, declaring_file, tmp_path
):
  """Encodes texts with added tokens, for each file that can declare tokens.

  Ids and offsets must be those of transformers, also after the vocabulary is
  saved and loaded.
  """
  transformers = pytest.importorskip("transformers")
  open_with_transformers = transformers.AutoTokenizer.from_pretrained
  path = write_model(tmp_path / "a", family, declaring_file)
  reference, vocabulary = (
    open_with_transformers(path),
    open_vocabulary.load(path),
  )
  tokenizer_with_special = model_tokenizer.build(
    read_folder(tmp_path / "a"), path
  )
  saved_folder = tmp_path / "b"
  write_files(saved_folder, open_vocabulary.to_files(vocabulary))
  config = (tmp_path / "a" / "config.json").read_bytes()
  (saved_folder / "config.json").write_bytes(config)
  saved_vocabulary, saved_reference = (
    open_vocabulary.load(str(saved_folder)),
    open_with_transformers(saved_folder),
  )
  assert vocabulary.vocab_size == saved_vocabulary.vocab_size == len(reference)
  assert (
    vocabulary.added_ids
    == saved_vocabulary.added_ids
    == sorted(added_by_id(MAKE_VOCABULARY[family]()))
  )
  assert (
    vocabulary.never_masked_ids
    == [vocabulary.pieces.index("[E1]")]
    == saved_vocabulary.never_masked_ids
  )
  assert (
    vocabulary.at_word_boundary.tolist()
    == saved_vocabulary.at_word_boundary.tolist()
  )
  # transformers reads a literal [SEP] as the special token; `encode_batch`
  # reads it as text.
  texts = [text for text in TEXTS if "[SEP]" not in text]
  for text in texts:
    expected = reference(
      text, add_special_tokens=False, return_offsets_mapping=True
    )
    ids = expected["input_ids"]
    offsets = [tuple(pair) for pair in expected["offset_mapping"]]
    for tested_vocabulary in (
      vocabulary,
      saved_vocabulary,
      pickle.loads(pickle.dumps(vocabulary)),
    ):
      (encoded,) = tested_vocabulary.encode_offsets([text])
      assert (encoded.ids, encoded.offsets) == (ids, offsets), text
      assert tested_vocabulary.encode_batch([text]) == [ids], text
      assert tested_vocabulary.encode_batch([text, text]) == [ids, ids], text
      assert tested_vocabulary.encode_special(text) == ids, text
    assert (
      tokenizer_with_special.encode(text).ids == reference(text)["input_ids"]
    )
    assert saved_reference(text)["input_ids"] == reference(text)["input_ids"], (
      text
    )
  flat_ids, lengths = vocabulary.encode_flat(texts)
  assert flat_ids.tolist() == list(
    itertools.chain(*vocabulary.encode_batch(texts))
  )
  assert lengths.tolist() == list(map(len, vocabulary.encode_batch(texts)))


def make_with_added(family, *new_tokens):
  return added_tokens.add_tokens(
    MAKE_VOCABULARY[family](), new_tokens or ADDED_TOKENS
  )


# Name of a case -> (the flags of the token "covid19", the expected pairs of a
# piece and its text).
FLAG_CASES = {
  "none": ({}, [("covid19", "covid19"), ("n", "n"), ("covid19", "COVID19")]),
  "single_word": ({"single_word": True}, [("covid19", "COVID19")]),
  "lstrip": (
    {"lstrip": True},
    [("covid19", " covid19"), ("n", "n"), ("covid19", "  COVID19")],
  ),
  "rstrip": (
    {"rstrip": True},
    [("covid19", "covid19"), ("n", "n"), ("covid19", "COVID19 ")],
  ),
  "raw": ({"normalized": False}, [("covid19", "covid19"), ("n", "n")]),
}


@pytest.mark.parametrize("case", FLAG_CASES)
def test_each_flag_decides_where_a_token_is_found(case):
  """Encodes a text, in which the token "covid19" has the flags of the case.

  Only the pieces "covid19" and "n" are compared with `expected`.
  """
  flags, expected = FLAG_CASES[case]
  fields = {"content": "covid19", **flags}
  vocabulary = make_with_added("bert", added_tokens.make_token(fields))
  pairs = pieces_and_slices(vocabulary, "the covid19n  COVID19 the")
  assert [pair for pair in pairs if pair[0] in ("covid19", "n")] == expected
  # The words around the token are read as if it were not there.
  assert pairs[0] == ("the", "the") and pairs[-1] == ("the", "the")


@pytest.mark.parametrize("family", MAKE_VOCABULARY)
def test_the_names_of_special_tokens_are_read_as_text(family):
  """A [MASK] in a corpus is read as text, even if there are added tokens."""
  vocabulary = make_with_added(family)
  names = sorted(added_tokens.family_special_tokens(vocabulary))
  text = " ".join(f"{name}[E1]" for name in names)
  (ids,) = vocabulary.encode_batch([text])
  special_ids = {vocabulary.pieces.index(name) for name in names} - {
    vocabulary.special.unk
  }
  assert not special_ids & set(ids)
  assert ids.count(vocabulary.pieces.index("[E1]")) == len(names)
  # `encode_special` also reads the family's special tokens.
  ids = vocabulary.encode_special(text)
  assert set(ids) >= {vocabulary.pieces.index(name) for name in names}


def test_a_mask_may_be_an_added_token():
  """Opens a tokenizer.json whose model has no [MASK]; it is an added token."""
  vocabulary = MAKE_VOCABULARY["bert"]()
  content = json.loads(added_tokens.make_model_tokenizer(vocabulary).to_str())
  size = len(content["model"]["vocab"])
  del content["model"]["vocab"]["[MASK]"]
  for piece, token_id in content["model"]["vocab"].items():
    content["model"]["vocab"][piece] = token_id - (
      token_id > vocabulary.special.mask
    )
  content["added_tokens"] = [
    {"id": token_id, "content": name}
    | added_tokens.flags_of(AddedToken(name, special=True))
    for token_id, name in ((size - 1, "[MASK]"), (size, "[E1]"))
  ]
  opened = open_vocabulary.from_json(json.dumps(content))
  assert opened.special.mask == size - 1 and opened.added_ids == [size]
  (ids,) = opened.encode_batch(["the [E1] [MASK]"])
  assert ids[1] == size and size - 1 not in ids
  assert opened.encode_special("[E1] [MASK]") == [size, size - 1]


def test_pieces_of_tagged_words_are_those_of_transformers():
  """Each word gets a space before it, unless it is an added token."""
  transformers = pytest.importorskip("transformers")
  vocabulary = make_with_added("roberta", *ADDED_TOKENS[:3])
  vocab = {
    piece: token_id
    for token_id, piece in enumerate(MAKE_VOCABULARY["roberta"]().pieces)
  }
  merges = vocabulary.files["merges.txt"].decode().split("\n")[1:-1]
  reference = transformers.RobertaTokenizerFast(
    vocab=vocab,
    merges=[tuple(line.split(" ")) for line in merges],
    add_prefix_space=True,
  )
  reference.add_tokens(list(ADDED_TOKENS[:3]))
  words = ["the", "covid19", "xcovid19y", "[E1]the", "Qarts", "Qart", "an"]
  expected = reference(
    words, is_split_into_words=True, add_special_tokens=False
  )
  ids, counts = tagging.word_pieces(vocabulary, words)
  assert ids.tolist() == expected["input_ids"]
  word_indices = np.repeat(np.arange(len(words)), counts).tolist()
  assert word_indices == expected.word_ids()


def test_context_offsets_leave_out_spaces_that_a_token_strips():
  token = added_tokens.make_token(
    {"content": "<x>", "lstrip": True, "rstrip": True}
  )
  vocabulary, text = make_with_added("bert", token), "the  <x>  the"
  context = questions.encode_context(vocabulary, text)
  assert [text[begin:end] for begin, end in context.offsets] == [
    "the",
    "<x>",
    "the",
  ]
  (encoded,) = vocabulary.encode_offsets([text])
  assert [text[begin:end] for begin, end in encoded.offsets] == [
    "the",
    "  <x>  ",
    "the",
  ]


TEXT_WITH_ADDED_TOKENS = "an covid19n covid19 the[E1]the an covid19."


@pytest.mark.parametrize("family", MAKE_VOCABULARY)
def test_an_added_token_is_one_word(family, tmp_path):
  """The piece after an added token begins a word, also in prepared folders."""
  vocabulary = make_with_added(family)
  (ids,) = vocabulary.encode_batch([TEXT_WITH_ADDED_TOKENS])
  is_word_start = vocabulary.find_word_starts(ids)
  added_positions = [
    i for i, token_id in enumerate(ids) if token_id in vocabulary.added_ids
  ]
  assert len(added_positions) >= 4 and is_word_start[added_positions].all()
  positions_after = [i + 1 for i in added_positions if i + 1 < len(ids)]
  assert is_word_start[positions_after].all()
  documents = writer.EncodedDocuments(
    tokens=np.array(ids, np.uint16),
    sentence_lengths=np.array([len(ids)]),
    document_lengths=np.array([1]),
  )
  dtype = np.dtype(np.uint16)
  split_writer = writer.SplitWriter(
    str(tmp_path), dtype=dtype, progress={"files": {}}
  )
  split_writer.append("train", documents)
  split_writer.save({})
  split_writer.close()
  writer.write_derived_files(
    str(tmp_path),
    vocab_size=vocabulary.num_ids,
    at_word_boundary=vocabulary.at_word_boundary,
    marks_word_ends=vocabulary.marks_word_ends,
    is_whole_word_piece=vocabulary.is_added_token,
  )
  bits = np.fromfile(tmp_path / "train.word_starts", np.uint8)
  is_stored_start = np.unpackbits(bits, bitorder="little")[: len(ids)].astype(
    bool
  )
  assert is_stored_start.tolist() == is_word_start.tolist()


@pytest.mark.parametrize("masking", ["token", "whole_word", "span"])
def test_special_added_tokens_are_never_masked_or_drawn(masking):
  """Added tokens that are not special are masked like any word.

  There are enough rows to draw more than 100 different random ids.
  """
  vocabulary = make_with_added("roberta", *ADDED_TOKENS[:2])
  ordinary_id, special_id = vocabulary.added_ids
  rng = np.random.default_rng(0)
  ids = [vocabulary.pieces.index(piece) for piece in ("the", "Ġthe", "Ġa", "n")]
  choices = [*ids, ordinary_id, special_id]
  documents = [
    [rng.choice(choices, 20).tolist() for _ in range(6)] for _ in range(40)
  ]
  word_starts = [
    [vocabulary.find_word_starts(sentence) for sentence in document]
    for document in documents
  ]
  corpus = reader.corpus_from_documents(documents, word_starts=word_starts)
  corpus = corpus._replace(never_masked_ids=tuple(vocabulary.never_masked_ids))
  recipe = recipes.doc_sentences(
    vocabulary.special,
    vocabulary.vocab_size,
    length=64,
    max_predictions=30,
    mask_rate=0.5,
    masking=masking,
    replacement="roberta",
    count="ceil",
  )
  # From document 0 to the last document, with the random key 1.
  rows = recipe.index(corpus, 0, corpus.num_documents, 1)
  example_numbers = np.arange(len(rows), dtype=np.uint64)
  random_ids = set()
  for key in range(5):
    batch = recipe.build(corpus, rows, example_numbers, key)
    is_used = batch["mlm_weights"] > 0
    labels = batch["mlm_ids"][is_used]
    assert special_id not in labels and ordinary_id in labels
    new_ids = np.take_along_axis(
      batch["input_ids"], batch["mlm_positions"].astype(np.int64), 1
    )[is_used]
    random_ids |= set(
      new_ids[
        (new_ids != labels) & (new_ids != vocabulary.special.mask)
      ].tolist()
    )
    # Every special added token of the corpus is still in the batch.
    num_special = sum(
      sentence.count(special_id)
      for document in documents
      for sentence in document
    )
    assert (batch["input_ids"] == special_id).sum() == num_special
  assert len(random_ids) > 100 and special_id not in random_ids
  assert not random_ids & {i for i in vocabulary.special if i is not None}


def test_files_that_contradict_each_other_are_named(tmp_path):
  def assert_refused(match, **changes):
    path = write_model(tmp_path / "x", "bert", "added_tokens.json")
    for name, content in changes.items():
      text = content if isinstance(content, str) else json.dumps(content)
      (tmp_path / "x" / f"{name}.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=match):
      open_vocabulary.load(path)
    with pytest.raises(ValueError, match=match):
      model_tokenizer.build(read_folder(tmp_path / "x"), path)

  size = MAKE_VOCABULARY["bert"]().vocab_size
  message_start = (
    f"added_tokens.json: the token 'covid19' has the id {size + 7}, but"
  )
  assert_refused(
    f"{message_start} it would get the id {size}, the next one after",
    added_tokens={"covid19": size + 7},
  )
  entry = {"content": "covid19", "special": False}
  assert_refused(
    "tokenizer_config.json: the token 'covid19' has the id 5, but the id"
    f" {size} in",
    tokenizer_config={"added_tokens_decoder": {"5": entry}},
  )
  assert_refused(
    "added_tokens.json must be a JSON object with a token and its id",
    added_tokens={"a": "b"},
  )
  assert_refused("added_tokens.json:1 is not JSON", added_tokens="[1")
  assert_refused(
    "tokenizer_config.json: its added_tokens_decoder is damaged",
    tokenizer_config={"added_tokens_decoder": {"x": entry}},
  )
  path = write_model(tmp_path / "y", "bert", "added_tokens.json")
  with pytest.raises(ValueError, match="'original' cannot have added tokens"):
    open_vocabulary.load(path, rules="original")


# Name -> (contents of the added tokens, a text, and for each token in the text
# its index in the contents).
EQUAL_TOKEN_CASES = {
  "covid": (["COVID", "covid"], "COVID covid Covid xcovid", "0101"),
  "last": (["a1", "Zürich", "zurich", "ZURICH"], "zurich Zürich a1", "210"),
  "both": (["New York", "new york", "[E]"], "NEW YORK new york [e]", "012"),
}


@pytest.mark.parametrize("declaring_file", DECLARING_FILES)
@pytest.mark.parametrize("case", EQUAL_TOKEN_CASES)
def test_tokens_that_cleaning_makes_equal_are_told_apart(
  case, declaring_file, tmp_path, capfd
):
  """Encodes text with added tokens that are equal after text is cleaned.

  Each exact spelling must give its own token, in each opened vocabulary.
  """
  transformers = pytest.importorskip("transformers")
  messages.note_once.cache_clear()
  contents, text, expected = EQUAL_TOKEN_CASES[case]
  vocabulary = MAKE_VOCABULARY["bert"]()
  size = vocabulary.vocab_size
  new_tokens = [AddedToken(content, normalized=True) for content in contents]
  files = {"vocab.txt": vocabulary.files["vocab.txt"]}
  if declaring_file == "added_tokens.json":
    ids_by_content = {content: size + i for i, content in enumerate(contents)}
    files[declaring_file] = json.dumps(ids_by_content).encode()
  elif declaring_file == "tokenizer_config.json":
    entries_by_id = {
      str(size + i): {
        "content": token.content,
        **added_tokens.flags_of(token),
      }
      for i, token in enumerate(new_tokens)
    }
    settings = {"do_lower_case": True, "added_tokens_decoder": entries_by_id}
    files[declaring_file] = json.dumps(settings).encode()
  else:
    vocabulary.special_tokenizer.add_tokens(new_tokens)
    files = {declaring_file: vocabulary.special_tokenizer.to_str().encode()}
  path = write_files(tmp_path / "a", files)
  opened = open_vocabulary.load(path)
  warning = capfd.readouterr().err
  assert (
    warning.startswith("warning: the added tokens ")
    and warning.count("\n") == 1
  )
  equal_contents = [
    content for content in contents if content not in ("a1", "[E]")
  ]
  assert " and ".join(map(repr, equal_contents)) + " are equal" in warning
  first_content, second_content = equal_contents[:2]
  assert (
    f"{first_content!r} is found in every spelling except {second_content!r}"
    in warning
  )
  expected_ids = [size + int(digit) for digit in expected]

  def added_ids_in(ids):
    return [token_id for token_id in ids if token_id >= size]

  write_files(tmp_path / "b", open_vocabulary.to_files(opened))
  tokenizer_with_special = model_tokenizer.build(
    read_folder(tmp_path / "a"), path
  )
  reopened = open_vocabulary.load(str(tmp_path / "b"))
  (tmp_path / "b" / "config.json").write_text('{"model_type": "bert"}')
  reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "b")
  for tested_vocabulary in (
    opened,
    reopened,
    pickle.loads(pickle.dumps(opened)),
  ):
    (ids,) = tested_vocabulary.encode_batch([text])
    assert added_ids_in(ids) == expected_ids
    assert added_ids_in(tested_vocabulary.encode_special(text)) == expected_ids
  assert added_ids_in(tokenizer_with_special.encode(text).ids) == expected_ids
  assert added_ids_in(reference(text)["input_ids"]) == expected_ids
  reference_ids = reference.get_added_vocab()
  assert [reference_ids[content] for content in contents] == [
    *range(size, size + len(contents))
  ]
  # The saved files keep the tokens apart, so loading them gives no warning.
  messages.note_once.cache_clear()
  open_vocabulary.load(str(tmp_path / "b"))
  assert not capfd.readouterr().err


def test_equal_tokens_inside_a_longer_one_give_a_warning(capfd):
  messages.note_once.cache_clear()
  make_with_added("bert", *map(AddedToken, ("covid", "COVID", "Covid19", "b")))
  warning = capfd.readouterr().err
  assert "'covid' and 'COVID' are equal" in warning
  assert "each process may find a different one" in warning
  assert "since 'Covid19' contains them; remove one" in warning


def test_a_pickled_vocabulary_gives_the_same_ids():
  """A pickle of `tokenizers` loses the setting `encode_special_tokens`.

  `Vocabulary` sets it again.
  """
  vocabulary = make_with_added("bert")
  unpickled = pickle.loads(pickle.dumps(vocabulary))
  assert (
    unpickled == vocabulary
    and unpickled.plain_text_tokenizer.encode_special_tokens
  )
  text = "[SEP] covid19 [E1]"
  assert unpickled.encode_batch([text]) == vocabulary.encode_batch([text])
  assert vocabulary.special.sep not in unpickled.encode_batch([text])[0]
