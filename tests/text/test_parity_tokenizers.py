"""Tests that ids and offsets are those of transformers' tokenizers."""

import json
import os
import pathlib
import random
import unicodedata

import pytest

from bert_jax.text import bpe, model_tokenizer, open_vocabulary, unigram

transformers = pytest.importorskip(
  "transformers", reason="transformers is not installed"
)
DATA_FOLDER = os.environ.get("BERT_JAX_TEST_DATA")
if not DATA_FOLDER:
  pytest.skip("BERT_JAX_TEST_DATA names no folder", allow_module_level=True)
VOCABULARY_FOLDER = pathlib.Path(DATA_FOLDER, "vocab")


def read_file(name):
  return (VOCABULARY_FOLDER / name).read_text(encoding="utf-8")


# Each function up to `TOKENIZERS` returns (our tokenizer, transformers'
# tokenizer).
def wordpiece(name, lower_case):
  path = str(VOCABULARY_FOLDER / f"bert-base-{name}-vocab.txt")
  return (
    open_vocabulary.load(path, lower_case=lower_case),
    transformers.BertTokenizer(vocab=path, do_lower_case=lower_case),
  )


def gpt2(pieces_file="gpt2/encoder.json", class_name="GPT2Tokenizer"):
  vocab = json.loads(read_file(pieces_file))
  merges = bpe.read_merges(read_file("gpt2/vocab.bpe"), "vocab.bpe")
  reference = getattr(transformers, class_name)(vocab=vocab, merges=merges)
  if class_name == "RobertaTokenizer":
    # The files of the published models set lstrip.
    mask = transformers.AddedToken("<mask>", lstrip=True, special=True)
    reference.add_special_tokens({"mask_token": mask})
  return bpe.build_bytelevel(vocab, merges), reference


def gpt1():
  vocab = json.loads(read_file("gpt1/encoder_bpe_40000.json"))
  merges = bpe.read_merges(read_file("gpt1/vocab_40000.bpe"), "vocab_40000.bpe")
  reference = transformers.OpenAIGPTTokenizer(vocab=vocab, merges=merges)
  return bpe.build_gpt1(vocab, merges), reference


def albert():
  path = VOCABULARY_FOLDER / "albert_like" / "30k-clean.model"
  content = path.read_bytes()
  model = unigram.parse_model(content, str(path))
  reference = transformers.AlbertTokenizer(
    vocab=list(zip(model.pieces, model.scores, strict=True)),
    _spm_precompiled_charsmap=model.charsmap,
  )
  return unigram.build(content, str(path)), reference


TOKENIZERS = {
  "uncased": lambda: wordpiece("uncased", lower_case=True),
  "cased": lambda: wordpiece("cased", lower_case=False),
  "gpt2": gpt2,
  "roberta": lambda: gpt2("roberta/vocab.json", "RobertaTokenizer"),
  "gpt1": gpt1,
  "albert": albert,
}


def make_texts(characters, num_mixtures):
  """Yields test texts.

  First, there is a text for each character, between two letters. Then come
  `num_mixtures` random mixtures, each followed by random bytes as text.
  """
  rng = random.Random(0)

  def random_text():
    chance = rng.random()
    if chance < 0.4:
      return rng.choice(["the ", "Ab", " ", "don't", "x" * 120, "  ", "1,000"])
    if chance < 0.5:
      return chr(rng.randrange(0x300, 0x370))
    if chance < 0.6:
      return rng.choice(["[MASK]", "<mask>", "</s>", "<pad>", "[SEP]"])
    if chance < 0.7:
      return rng.choice(["\U0001f468\u200d\U0001f469", "\u2764\ufe0f", "\t\n"])
    return rng.choice(characters)

  yield from (f"a{character}b" for character in characters)
  for _ in range(num_mixtures):
    yield "".join(random_text() for _ in range(rng.randrange(20)))
    random_bytes = bytes(rng.randrange(256) for _ in range(9))
    yield random_bytes.decode("utf-8", "replace")


def extend_to_marks(text, offsets):
  """Extends transformers' offsets to all characters that belong to a piece.

  The offsets then include the marks after the last character of a piece, and
  both characters of a quote such as ``. ALBERT's cleaning turns the two
  characters into one. All other tokenizers have a piece for each of the two.
  """
  covered_indices = {i for begin, end in offsets for i in range(begin, end)}
  # Joiners, half-width sound marks, and Korean vowels and final consonants also
  # belong to the character before them.
  attached_points = {0x200C, 0x200D, 0xFF9E, 0xFF9F}
  attached_points |= {*range(0x1160, 0x1200), *range(0xD7B0, 0xD800)}
  extended_offsets = []
  for begin, end in offsets:
    while begin < end < len(text) and end not in covered_indices:
      is_mark = unicodedata.category(text[end]).startswith("M")
      if not is_mark and ord(text[end]) not in attached_points:
        break
      end += 1
    is_quote = text[max(begin - 1, 0) : begin + 1] in ("''", "``")
    if begin < end and is_quote and begin - 1 not in covered_indices:
      begin -= 1
    extended_offsets.append((begin, end))
  return extended_offsets


def compare_with_reference(tokenizer_name, step, num_mixtures):
  vocabulary, reference = TOKENIZERS[tokenizer_name]()
  characters = [
    chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000
  ]
  characters = [
    character
    for character in characters
    if unicodedata.category(character) != "Cn"
  ]
  texts = list(make_texts(characters[::step], num_mixtures))
  for begin in range(0, len(texts), 10_000):
    batch = texts[begin : begin + 10_000]
    expected = reference(
      batch, add_special_tokens=False, return_offsets_mapping=True
    )
    for text, ids, offsets, encoded in zip(
      batch,
      expected["input_ids"],
      expected["offset_mapping"],
      vocabulary.encode_offsets(batch, special=True),
      strict=True,
    ):
      assert encoded.ids == list(ids), repr(text)
      assert encoded.offsets == extend_to_marks(text, offsets), repr(text)
    ids_by_offsets = [
      encoded.ids for encoded in vocabulary.encode_offsets(batch)
    ]
    assert vocabulary.encode_batch(batch) == ids_by_offsets


@pytest.mark.parametrize("tokenizer_name", TOKENIZERS)
def test_sampled_code_points_give_the_reference_ids(tokenizer_name):
  compare_with_reference(tokenizer_name, step=97, num_mixtures=500)


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer_name", TOKENIZERS)
def test_every_code_point_gives_the_reference_ids(tokenizer_name):
  # Every other tokenizer cleans text like one of these two, so a fifth of the
  # characters is enough for it.
  step = 1 if tokenizer_name in ("uncased", "albert") else 5
  compare_with_reference(tokenizer_name, step=step, num_mixtures=5_000)


def write_folder(tokenizer_name, path):
  """Writes a model's files without tokenizer.json.

  Returns:
    transformers' tokenizer for these files.
  """
  if tokenizer_name in ("uncased", "cased", "accents"):
    name = "cased" if tokenizer_name == "cased" else "uncased"
    options = {"do_lower_case": tokenizer_name != "cased"}
    if tokenizer_name == "accents":
      options |= {"strip_accents": False, "tokenize_chinese_chars": False}
    (path / "vocab.txt").write_text(read_file(f"bert-base-{name}-vocab.txt"))
    (path / "tokenizer_config.json").write_text(json.dumps(options))
    return transformers.BertTokenizer(str(path / "vocab.txt"), **options)
  vocabulary, reference = TOKENIZERS[tokenizer_name]()
  for name, content in vocabulary.files.items():
    if name != "tokenizer.json":
      (path / name).write_bytes(content)
  return reference


@pytest.mark.parametrize(
  "tokenizer_name", ["uncased", "cased", "accents", "roberta", "gpt1", "albert"]
)
def test_a_models_tokenizer_gives_the_reference_ids(tokenizer_name, tmp_path):
  """A model's tokenizer gives transformers' ids, with special tokens.

  A vocabulary from the same files gives the ids without special tokens.
  """
  reference = write_folder(tokenizer_name, tmp_path)
  files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
  tokenizer = model_tokenizer.build(files, str(tmp_path))
  characters = map(chr, range(0x3000))
  characters = [
    character
    for character in characters
    if unicodedata.category(character) != "Cn"
  ]
  texts = list(make_texts(characters, 500))
  expected = list(map(list, reference(texts)["input_ids"]))
  assert [encoded.ids for encoded in tokenizer.encode_batch(texts)] == expected
  encoded_pairs = tokenizer.encode_batch(
    list(zip(texts, texts[::-1], strict=True))
  )
  expected_pairs = reference(texts, texts[::-1], return_token_type_ids=True)
  assert [encoded.ids for encoded in encoded_pairs] == list(
    map(list, expected_pairs["input_ids"])
  )
  segments = list(map(list, expected_pairs["token_type_ids"]))
  assert [encoded.type_ids for encoded in encoded_pairs] == segments
  vocabulary = open_vocabulary.load(str(tmp_path))
  ids = [encoded.ids for encoded in vocabulary.encode_offsets(texts)]
  assert vocabulary.encode_batch(texts) == ids
  if tokenizer_name != "roberta":
    expected = reference(texts, add_special_tokens=False)["input_ids"]
    ids = [
      encoded.ids for encoded in vocabulary.encode_offsets(texts, special=True)
    ]
    assert ids == list(map(list, expected))
