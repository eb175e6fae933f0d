"""Tests every kind of tokenizer on text of many languages.

The cleaning of text is chosen once, when the vocabulary is trained.
"""

import functools
import io
import json
import pathlib
import random
import unicodedata

import numpy as np
import pytest
from languages import LANGUAGES, LINES, TEXTS
from tiny_vocabularies import gpt1_vocabulary

from bert_jax.corpus import prepare, reader, train_vocab
from bert_jax.examples import loader
from bert_jax.tasks import encoded_rows, prepare_task, task_inputs
from bert_jax.text import cleaning, open_vocabulary, unigram, words

sentencepiece = pytest.importorskip(
  "sentencepiece", reason="the extra [data] is not there"
)
# Options of `train_vocab`. Without options, text loses capitals and accents.
STRIPPED = {}
ACCENTS = dict(keep_accents=True)
CASED = dict(lower_case=False)
# The size of a vocabulary and the name of its file, by algorithm.
VOCABULARY_SIZES = dict(
  wordpiece=3000, bytelevel=1000, words=3000, unigram=1500
)
FILE_NAMES = dict(
  wordpiece="vocab.txt", words="vocab.txt", unigram="spiece.model"
)
# Pairs of (algorithm, options).
CASES = [
  *(("wordpiece", options) for options in (STRIPPED, ACCENTS, CASED)),
  *(("unigram", options) for options in (STRIPPED, ACCENTS, CASED)),
  ("bytelevel", STRIPPED),
  ("words", STRIPPED),
]


@pytest.fixture(scope="module")
def vocabulary_path(tmp_path_factory):
  """Returns a function that trains a vocabulary once and returns its path.

  Its arguments are the algorithm and the options. Its attribute `text_path` is
  the path of the text.
  """
  path = tmp_path_factory.mktemp("languages")
  text_path = path / "text.txt"
  text_path.write_text("\n".join(LINES * 3) + "\n", encoding="utf-8")

  @functools.cache
  def train(algorithm, **options):
    name = "-".join([algorithm, *map(str, options.items())])
    (path / name).mkdir()
    output = str(path / name / FILE_NAMES.get(algorithm, "pieces"))
    train_vocab.train_vocab(
      str(text_path),
      size=VOCABULARY_SIZES[algorithm],
      output=output,
      algorithm=algorithm,
      **options,
    )
    return output

  train.text_path = str(text_path)
  return train


def clean_like_bert(text, lower_case=True, keep_accents=None):
  """Cleans a text as BERT does, with code that the package does not use."""
  text = text.replace("\u200c", "").replace("\u200d", "")
  if lower_case:
    text = text.lower()
  if lower_case and not keep_accents:
    text = "".join(
      character
      for character in unicodedata.normalize("NFD", text)
      if unicodedata.category(character) != "Mn"
    )
  return text


@pytest.mark.parametrize("algorithm, options", CASES)
def test_no_piece_is_unknown_and_offsets_cover_the_text(
  algorithm, options, vocabulary_path
):
  vocabulary = open_vocabulary.load(vocabulary_path(algorithm, **options))
  ids_of_lines = vocabulary.encode_batch(LINES)
  for line, ids, encoded in zip(
    LINES, ids_of_lines, vocabulary.encode_offsets(LINES), strict=True
  ):
    assert vocabulary.special.unk not in ids, line
    assert encoded.ids == ids
    is_covered = np.zeros(len(line), bool)
    for begin, end in encoded.offsets:
      is_covered[begin:end] = True
    uncovered_text = "".join(np.array(list(line))[~is_covered])
    assert uncovered_text.strip() == "", line
    if algorithm == "wordpiece":
      for token_id, (begin, end) in zip(ids, encoded.offsets, strict=True):
        piece = vocabulary.pieces[token_id].removeprefix("##")
        expected = clean_like_bert(line[begin:end], **options)
        assert expected.replace("ς", "σ") == piece.replace("ς", "σ")


@pytest.mark.parametrize("algorithm, options", CASES)
def test_words_begin_after_spaces_and_at_punctuation(
  algorithm, options, vocabulary_path
):
  """Words begin after white space; in WordPiece also at punctuation."""
  vocabulary = open_vocabulary.load(vocabulary_path(algorithm, **options))
  for line in LINES:
    (encoded,) = vocabulary.encode_offsets([line])
    first_piece_indices = np.flatnonzero(
      vocabulary.find_word_starts(encoded.ids)
    )
    begins = [encoded.offsets[i][0] for i in first_piece_indices]
    ends = [*begins[1:], len(line)]
    words_of_line = [
      line[begin:end].strip() for begin, end in zip(begins, ends, strict=True)
    ]
    if algorithm in ("unigram", "bytelevel"):
      assert words_of_line == line.split()
    elif algorithm == "wordpiece":
      pieces = vocabulary.plain_text_tokenizer.pre_tokenizer.pre_tokenize_str(
        vocabulary.plain_text_tokenizer.normalizer.normalize_str(line)
      )
      assert len(words_of_line) == len(pieces)
      assert "".join(words_of_line) == "".join(line.split())
    else:
      assert all(words_of_line) and "".join(words_of_line) == "".join(
        line.split()
      )


@pytest.mark.parametrize("algorithm", ["unigram", "wordpiece"])
@pytest.mark.parametrize("masking", ["whole_word", "ngram"])
def test_masks_take_whole_words_of_any_script(
  algorithm, masking, vocabulary_path, tmp_path
):
  """Masks rows of text; of each word, all pieces or none must be masked."""
  folder = str(tmp_path / "prepared")
  prepare.prepare(
    vocabulary_path.text_path,
    vocabulary_path(algorithm, **CASED),
    folder,
    processes=1,
    heldout=0.0,
  )
  vocabulary = open_vocabulary.load(folder)
  length = 96
  opened = loader.open_data(
    folder, "doc_sentences", length=length, masking=masking
  )
  batch = opened.read(0, 64)
  special_ids = {i for i in vocabulary.special if i is not None}
  num_masked_inner = 0  # The number of masked pieces that begin no word.
  for row in range(64):
    ids = batch["input_ids"][row].copy()
    is_masked = np.zeros(length, bool)
    is_used = batch["mlm_weights"][row] > 0
    positions = batch["mlm_positions"][row][is_used]
    is_masked[positions] = True
    ids[positions] = batch["mlm_ids"][row][is_used]
    is_word_start = vocabulary.at_word_boundary[ids]
    is_text = ~np.isin(ids, [*special_ids]) | is_masked
    for position in np.flatnonzero(is_text[1:] & ~is_word_start[1:]) + 1:
      if is_text[position - 1]:
        num_masked_inner += is_masked[position]
        assert is_masked[position] == is_masked[position - 1], row
  assert num_masked_inner > 20


@pytest.mark.parametrize("algorithm, options", CASES[:-1])
def test_ids_are_those_of_transformers(
  algorithm, options, vocabulary_path, tmp_path
):
  transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed"
  )
  vocabulary = open_vocabulary.load(vocabulary_path(algorithm, **options))
  open_vocabulary.save(vocabulary, str(tmp_path))
  reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
  expected = reference(LINES, add_special_tokens=False)["input_ids"]
  assert vocabulary.encode_batch(LINES) == list(map(list, expected))
  special = vocabulary.special
  assert reference.mask_token_id == special.mask
  assert reference.pad_token_id == special.pad
  ids_with_special = reference(LINES[0])["input_ids"]
  assert ids_with_special == [special.cls, *expected[0], special.sep]
  reopened = open_vocabulary.load(str(tmp_path))
  assert reopened.encode_batch(LINES) == vocabulary.encode_batch(LINES)
  assert reopened.lower_case == vocabulary.lower_case
  assert reopened.keep_accents == vocabulary.keep_accents
  assert (
    reopened.at_word_boundary.tolist() == vocabulary.at_word_boundary.tolist()
  )


# Letters with marks in the order in which people type them, which is not
# Unicode's order.
TYPED_MARKS = [
  "\u0645\u064f\u062d\u064e\u0645\u0651\u064e\u062f \u062f\u0651\u064e\u0629",
  "\u05e9\u05c1\u05bc\u05b8 \u05e9\u05bc\u05c1\u05b7\u05d1\u05bc\u05b8",
  "\u1014\u103a\u1037 \u1001\u103d\u1004\u1037\u103a",
  "\u0627\u0651\u064e \u0915\u094d\u093c \u0e14\u0e48\u0e38",
]
# Lines that are hard to clean. They have marks in an order that NFC changes,
# letters without a composed character, controls, kinds of white space, quotes,
# ligatures, and letters of full width.
ODD_LINES = [
  "Tie\u0302\u0301ng Vi\u00ea\u0323t, \u00e9\u0323, E\u0302\u0323,",
  "o\u031b\u0323 J\u030c \u0130 I\u0307 \u1e9e \u01c5 \ufb01n a\u0331\u0301",
  "\uff21\uff22\uff5e \u2460 \u210c \u0390 \u1fb7 \u1f88",
  "\u1112\u1161\u11ab\u1100\u116e\u11a8 \uff76\uff9e \u304b\u3099",
  "``a'' 'b' a\u00a0b\u3000c\u2009d\u200be\u0085f\tg\u2028h",
  "\u0645\u06cc\u200c\u0631\u0648\u0645 \u0915\u094d\u200d\u0937 \u0001x\u007f",
  "\u0627\u0650\u0655 \u0627\u064f\u0654 \u05e9\u05bc\u05c1 \u0e19\u0e49\u0e33",
  "\u2581 a\u2581b <pad> [MASK] <unk> \U0001f468\u200d\U0001f469",
]


@pytest.mark.parametrize(
  "options",
  [STRIPPED, ACCENTS, CASED, dict(lower_case=False, keep_accents=False)],
)
def test_ids_are_those_of_sentencepiece(options, vocabulary_path):
  """Encodes lines with a file that also tells SentencePiece how to clean text.

  The ids must be those of SentencePiece.
  """
  path = vocabulary_path("unigram", **options)
  processor = sentencepiece.SentencePieceProcessor(model_file=path)
  vocabulary = open_vocabulary.load(path)
  expected = cleaning.Cleaning(**options).with_defaults()
  assert vocabulary.lower_case == expected.lower_case
  assert vocabulary.keep_accents == expected.keep_accents
  lines = [
    *LINES,
    *TYPED_MARKS,
    *ODD_LINES,
    *(unicodedata.normalize("NFD", line) for line in ODD_LINES),
  ]
  assert vocabulary.encode_batch(lines) == processor.encode(lines)


# If there is no letter before marks, the library `tokenizers` treats each mark
# by itself, so the results for these characters differ.
LONE_MARKS = (
  "\u0344\u0385\u1fc1\u1fcd\u1fce\u1fcf\u1fdd\u1fde\u1fdf\u1fed\u1fee"
)
# SentencePiece's tables are older than this character, so `tokenizers` has no
# rule that composes it.
NEW_CHARACTER = "\U00011938"


@pytest.mark.slow
@pytest.mark.parametrize("options", [STRIPPED, ACCENTS, CASED])
def test_every_code_point_is_cleaned_as_sentencepiece_does(
  options, vocabulary_path
):
  """Cleans each character between two letters, composed and decomposed.

  The result must be that of SentencePiece.
  """
  path = vocabulary_path("unigram", **options)
  reference = sentencepiece.SentencePieceNormalizer(
    model_file=path,
    add_dummy_prefix=False,
    escape_whitespaces=False,
    remove_extra_whitespaces=False,
  )
  normalizer = open_vocabulary.load(path).plain_text_tokenizer.normalizer
  different_characters = set()
  for character in map(chr, range(0x110000)):
    if unicodedata.category(character) in ("Cn", "Cs"):
      continue
    for text in (character, unicodedata.normalize("NFD", character)):
      text = f"a{text}b"
      cleaned_words = normalizer.normalize_str(text).split()
      if reference.normalize(text).split() != cleaned_words:
        different_characters.add(character)
  assert different_characters <= {*LONE_MARKS, *NEW_CHARACTER}


@pytest.mark.parametrize(
  "rule, options, clean_text",
  [
    ("nmt_nfkc", CASED, str),
    ("identity", CASED, str),
    ("nmt_nfkc_cf", {}, str),
    ("nmt_nfkc", ACCENTS, lambda text: "".join(map(str.lower, text))),
  ],
)
def test_models_of_sentencepiece_give_its_ids(rule, options, clean_text):
  """Trains models with several cleaning rules of SentencePiece.

  Encoding must follow the rules that the model's file holds.
  """
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter([clean_text(line) for line in LINES * 3]),
    model_writer=model,
    vocab_size=1500,
    hard_vocab_limit=False,
    pad_id=0,
    unk_id=1,
    bos_id=-1,
    eos_id=-1,
    pad_piece="<pad>",
    unk_piece="<unk>",
    control_symbols=["[CLS]", "[SEP]", "[MASK]"],
    normalization_rule_name=rule,
    minloglevel=2,
  )
  content = model.getvalue()
  processor = sentencepiece.SentencePieceProcessor(model_proto=content)
  vocabulary = unigram.build(content, **options)
  expected = processor.encode(
    [clean_text(line) for line in LINES + TYPED_MARKS]
  )
  assert vocabulary.encode_batch(LINES + TYPED_MARKS) == expected
  if rule == "nmt_nfkc_cf":
    with pytest.raises(ValueError, match="and --no-lower-case .* asks for"):
      unigram.build(content, "x.model", lower_case=False)


@pytest.mark.parametrize("algorithm", ["unigram", "wordpiece"])
def test_korean_words_are_not_unknown(algorithm, tmp_path):
  """Prepares Korean text; no piece may be unknown.

  Decomposed syllables must get the ids of composed syllables. This is not
  tested with a WordPiece vocabulary that keeps accents.
  """
  korean_words = [
    "바다",
    "학교",
    "선생님",
    "저녁",
    "친구",
    "도시",
    "골목",
    "커피",
  ]
  lines = [
    f"{first} {second}에서 {third}을 보았다."
    for first in korean_words
    for second in korean_words
    for third in korean_words
  ]
  text_path = tmp_path / "text.txt"
  text_path.write_text("\n".join(lines), encoding="utf-8")
  name = {"unigram": "k.model", "wordpiece": "k.txt"}[algorithm]
  for options in (STRIPPED,) if algorithm == "unigram" else (STRIPPED, CASED):
    output = str(tmp_path / "-".join([*options, name]))
    train_vocab.train_vocab(
      str(text_path), size=200, output=output, algorithm=algorithm, **options
    )
    prepared_folder = str(tmp_path / "-".join([*options, "prepared"]))
    prepare.prepare(str(text_path), output, prepared_folder, processes=1)
    opened = reader.open_prepared(prepared_folder)
    assert opened.unigrams[opened.special.unk] == 0
    vocabulary = open_vocabulary.load(prepared_folder)
    decomposed_lines = [unicodedata.normalize("NFD", line) for line in lines]
    if algorithm == "unigram" or not options:
      ids = vocabulary.encode_batch(lines)
      assert vocabulary.encode_batch(decomposed_lines) == ids


FRENCH_LINE = LANGUAGES["french"][-1]


@pytest.mark.parametrize("algorithm", ["unigram", "wordpiece"])
@pytest.mark.parametrize(
  "options, expected_text",
  [
    (STRIPPED, "l ' ete , le cafe etait ferme"),
    (ACCENTS, "l ' été , le café était fermé"),
    (CASED, "L ' été , le café était fermé"),
  ],
)
def test_text_is_prepared_as_the_vocabulary_was_trained(
  algorithm, options, expected_text, vocabulary_path, tmp_path
):
  """Prepares French text with a vocabulary of each kind.

  `prepare` must read the settings of the vocabulary and copy them.
  """
  path = vocabulary_path(algorithm, **options)
  folder = str(tmp_path / "prepared")
  meta = prepare.prepare(
    vocabulary_path.text_path, path, folder, processes=1, heldout=0.0
  )
  vocabulary = open_vocabulary.load(folder)
  text = vocabulary.decode(vocabulary.encode_batch([FRENCH_LINE])[0])
  assert text.replace(" ", "").startswith(expected_text.replace(" ", ""))
  opened = reader.open_prepared(folder)
  assert opened.unigrams[opened.special.unk] == 0
  assert vocabulary.keep_accents == bool(options)
  assert meta["lower_case"] == (options != CASED) == vocabulary.lower_case
  # Flags that agree with the vocabulary change nothing.
  second_meta = prepare.prepare(
    vocabulary_path.text_path, path, folder, processes=1, heldout=0.0, **options
  )
  assert second_meta["fingerprint"] == meta["fingerprint"]


@pytest.mark.parametrize("algorithm", ["unigram", "wordpiece"])
def test_contrary_flags_are_refused(algorithm, vocabulary_path):
  stripped_vocab, accents_vocab, cased_vocab = (
    vocabulary_path(algorithm, **options)
    for options in (STRIPPED, ACCENTS, CASED)
  )
  for path, options, message in (
    (
      stripped_vocab,
      CASED,
      "in lower case and without accents, and --no-lower-case",
    ),
    (
      stripped_vocab,
      ACCENTS,
      "without accents, and --keep-accents .*text with acc",
    ),
    (
      accents_vocab,
      CASED,
      "in lower case and with accents, and --no-lower-case",
    ),
    (cased_vocab, dict(lower_case=True), "with capitals and .*lower_case=True"),
    (
      cased_vocab,
      dict(keep_accents=False),
      "with accents, and keep_accents=False",
    ),
    (
      accents_vocab,
      dict(strip_accents=True),
      "with accents, and keep_accents=False",
    ),
  ):
    with pytest.raises(ValueError, match=message) as error:
      open_vocabulary.load(path, **options)
    assert path in str(error.value) and "\n" not in str(error.value)
  open_vocabulary.load(cased_vocab, lower_case=False, keep_accents=True)


def test_a_folder_with_tokenizer_json_refuses_contrary_flags(
  vocabulary_path, tmp_path
):
  open_vocabulary.save(
    open_vocabulary.load(vocabulary_path("unigram", **ACCENTS)), str(tmp_path)
  )
  assert (tmp_path / "tokenizer.json").exists()
  with pytest.raises(ValueError, match="in lower case and with accents"):
    open_vocabulary.load(str(tmp_path), lower_case=False)
  vocabulary = open_vocabulary.load(str(tmp_path), keep_accents=True)
  assert vocabulary.options["word_starts"] == "space"


def test_byte_level_and_words_keep_capitals_and_accents(vocabulary_path):
  for algorithm in ("bytelevel", "words"):
    vocabulary = open_vocabulary.load(
      vocabulary_path(algorithm), **CASED, **ACCENTS
    )
    assert not vocabulary.lower_case and vocabulary.keep_accents
    with pytest.raises(ValueError, match="with capitals and with accents"):
      open_vocabulary.load(vocabulary_path(algorithm), lower_case=True)


def test_joiners_and_marks_cut_no_word_of_elmo():
  """Joiners and the marks of Armenian, Hebrew and Catalan cut no word."""
  vocabulary = words.build(words.SPECIAL_WORDS)
  for text in (
    "می‌خوانم",
    "ශ්‍රී",
    "क्‍ष",
    "Սո՞ւրճ",
    "צה״ל",
    "ג׳ירפה",
    "col·legi",
    "n’est",
  ):
    (encoded,) = vocabulary.encode_offsets([f"a {text}. b"])
    end = 2 + len(text)
    expected = [(0, 1), (2, end), (end, end + 1), (end + 2, end + 3)]
    assert encoded.offsets == expected, text


def test_the_rules_for_words_are_stored(tmp_path):
  text_path = tmp_path / "text.txt"
  text_path.write_text("don't stop, don't stop.\n" * 5, encoding="utf-8")
  output = str(tmp_path / "mine.txt")
  train_vocab.train_vocab(
    str(text_path), size=100, output=output, algorithm="words", rules="spaces"
  )
  settings = json.loads((tmp_path / "mine.tokenizer_config.json").read_text())
  assert settings["rules"] == "spaces"
  vocabulary = open_vocabulary.load(output)
  (ids,) = vocabulary.encode_batch(["stop, stop."])
  assert [vocabulary.pieces[i] for i in ids] == ["stop,", "stop."]
  with pytest.raises(
    ValueError, match="--rules=spaces, not with --rules=words"
  ):
    open_vocabulary.load(output, rules="words")


def test_each_vocabulary_file_has_a_settings_file(vocabulary_path, tmp_path):
  """Only the settings of vocab.txt are in tokenizer_config.json.

  The settings of other.txt are in other.tokenizer_config.json.
  """
  vocabulary = open_vocabulary.load(vocabulary_path("wordpiece", **ACCENTS))
  content = vocabulary.files["vocab.txt"]
  settings = open_vocabulary.to_files(vocabulary)["tokenizer_config.json"]
  (tmp_path / "tokenizer_config.json").write_bytes(settings)
  for name, keeps_accents in (("vocab.txt", True), ("other.txt", False)):
    (tmp_path / name).write_bytes(content)
    vocabulary = open_vocabulary.load(str(tmp_path / name))
    assert vocabulary.keep_accents == keeps_accents
  (tmp_path / "other.tokenizer_config.json").write_bytes(settings)
  assert open_vocabulary.load(str(tmp_path / "other.txt")).keep_accents
  # A new vocabulary must not get the settings of a deleted vocabulary.
  (tmp_path / "vocab.txt").unlink()
  with pytest.raises(ValueError, match="tokenizer_config.json is in the way"):
    train_vocab.train_vocab(
      vocabulary_path.text_path,
      size=1000,
      output=str(tmp_path / "vocab.txt"),
      algorithm="words",
    )


@pytest.mark.parametrize("algorithm", ["unigram", "wordpiece", "words"])
def test_a_flipped_bit_of_a_vocabulary_is_noticed(
  algorithm, vocabulary_path, tmp_path
):
  """Flips random bits of a vocabulary, whose settings hold its digest.

  Opening it must fail, even if all pieces are still valid.
  """
  path = pathlib.Path(vocabulary_path(algorithm))
  content = path.read_bytes()
  settings_path = path.parent / "tokenizer_config.json"
  output = tmp_path / f"mine{path.suffix}"
  settings_copy = tmp_path / "mine.tokenizer_config.json"
  settings_copy.write_bytes(settings_path.read_bytes())
  rng = random.Random(0)
  for _ in range(60):
    damaged_content = bytearray(content)
    damaged_content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    output.write_bytes(bytes(damaged_content))
    with pytest.raises(ValueError, match=r"mine\.\w+ is not what was written"):
      open_vocabulary.load(str(output))
  output.write_bytes(content)
  pieces = open_vocabulary.load(str(path)).pieces
  assert open_vocabulary.load(str(output)).pieces == pieces
  # Earlier versions and other programs write no digest.
  settings_copy.unlink()
  assert open_vocabulary.load(str(output)).pieces == pieces


def test_the_digest_of_a_model_changes_no_ids(vocabulary_path, tmp_path):
  """Encodes lines with a folder that has a digest, and with one that has none.

  The ids must be equal, also with transformers. The ids of this package must
  also be those of SentencePiece.
  """
  transformers = pytest.importorskip("transformers")
  path = pathlib.Path(vocabulary_path("unigram"))
  settings = json.loads((path.parent / "tokenizer_config.json").read_text())
  assert settings.keys() == {"sha256", "checksum"}
  assert settings["sha256"].keys() == {path.name}
  (tmp_path / path.name).write_bytes(path.read_bytes())
  folder_with_digest, folder_without_digest = str(path.parent), str(tmp_path)
  model = sentencepiece.SentencePieceProcessor(model_file=str(path))
  lines = [line for line in LINES if line.isascii()]
  ids = open_vocabulary.load(folder_with_digest).encode_batch(lines)
  assert ids == open_vocabulary.load(folder_without_digest).encode_batch(lines)
  assert ids == model.encode(lines) and lines
  reference_ids = [
    transformers.AlbertTokenizer.from_pretrained(folder)(lines).input_ids
    for folder in (folder_with_digest, folder_without_digest)
  ]
  assert reference_ids[0] == reference_ids[1]


def test_words_begin_by_the_rule_of_albert_on_request(
  vocabulary_path, tmp_path
):
  path = vocabulary_path("unigram", **CASED)
  num_starts = {}
  for rule in unigram.WORD_STARTS:
    folder = str(tmp_path / rule)
    prepare.prepare(
      vocabulary_path.text_path,
      path,
      folder,
      processes=1,
      heldout=0.0,
      word_starts=rule,
    )
    corpus = reader.open_prepared(folder).splits["train"]
    bits = np.unpackbits(corpus.word_starts, bitorder="little")
    num_starts[rule] = bits[: corpus.num_tokens].sum()
    assert open_vocabulary.load(folder).options["word_starts"] == rule
  num_words = sum(len(line.split()) for line in LINES) * 3
  assert num_starts["space"] == num_words < num_starts["albert"]
  with pytest.raises(ValueError, match="from something else: word_starts was"):
    prepare.prepare(
      vocabulary_path.text_path,
      path,
      folder,
      processes=1,
      heldout=0.0,
      word_starts="space",
    )
  with pytest.raises(ValueError, match="word_starts 'all' is not one of"):
    open_vocabulary.load(path, word_starts="all")
  path = vocabulary_path("wordpiece")
  with pytest.raises(ValueError, match="has no option 'word_starts'"):
    open_vocabulary.load(path, word_starts="albert")
  content = open_vocabulary.load(path).special_tokenizer.to_str()
  (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
  with pytest.raises(ValueError, match="is for SentencePiece models"):
    open_vocabulary.load(str(tmp_path), word_starts="albert")


def test_prepare_warns_of_pieces_that_no_text_gives(
  vocabulary_path, tmp_path, capsys
):
  """Copies a vocabulary with accents without its settings.

  By default, text then loses its accents, and `prepare` must warn that no text
  gives the pieces with accents. With keep_accents it must not warn.
  """
  content = pathlib.Path(vocabulary_path("wordpiece", **ACCENTS)).read_bytes()
  (tmp_path / "mine.txt").write_bytes(content)
  path = str(tmp_path / "mine.txt")
  for options, must_warn in ((STRIPPED, True), (ACCENTS, False)):
    folder = str(tmp_path / "-".join(["p", *options]))
    prepare.prepare(
      vocabulary_path.text_path, path, folder, processes=1, **options
    )
    stderr = capsys.readouterr().err
    assert ("of 3,000 pieces, such as" in stderr) == must_warn, stderr
    assert ("no text gives them" in stderr) == must_warn


def test_a_seqio_task_uses_the_settings_of_the_vocabulary(vocabulary_path):
  """Registers text with a vocabulary that has settings.

  Only `word_starts` must be passed, which the vocabulary does not store.
  """
  seqio = pytest.importorskip("seqio", reason="the extra [data] is not there")
  from bert_jax.seqio_tasks import pretraining

  path = vocabulary_path("unigram", **ACCENTS)
  for name, options, rule in (
    ("as_trained", {}, "space"),
    ("released", dict(word_starts="albert", **ACCENTS), "albert"),
  ):
    seqio.TaskRegistry.remove(name)
    task = pretraining.register_text(
      name, vocabulary_path.text_path, path, length=32, **options
    )
    tokenizer = task.source.documents.tokenizer
    assert tokenizer.lower_case and tokenizer.keep_accents
    assert tokenizer.options["word_starts"] == rule
  seqio.TaskRegistry.remove("cased")
  task = pretraining.register_text(
    "cased", vocabulary_path.text_path, path, **CASED
  )
  with pytest.raises(ValueError, match="in lower case and with accents"):
    assert task.source.documents


def test_a_task_is_encoded_as_the_vocabulary_was_trained(
  vocabulary_path, tmp_path
):
  table_path = tmp_path / "train.tsv"
  table_path.write_text(
    f"sentence\tlabel\n{FRENCH_LINE}\t1\n", encoding="utf-8"
  )
  task = task_inputs.find_task("sst2")
  inputs = task_inputs.parse_inputs(task, [f"train={table_path}"])
  for algorithm in ("unigram", "wordpiece"):
    path = vocabulary_path(algorithm, **ACCENTS)
    folder = str(tmp_path / algorithm)
    meta = prepare_task.prepare(task, inputs, path, folder, length=64)
    assert meta["lower_case"]
    _, encoded, _ = encoded_rows.load(folder, "train")
    vocabulary = open_vocabulary.load(folder)
    text = vocabulary.decode(encoded.ids)
    assert "été" in text and "fermé" in text and vocabulary.keep_accents
    with pytest.raises(ValueError, match="--no-lower-case .* asks for"):
      prepare_task.prepare(task, inputs, path, folder + "2", length=64, **CASED)


def test_gpt1_is_always_lower_case(tmp_path):
  open_vocabulary.save(gpt1_vocabulary(), str(tmp_path))
  for options in (CASED, ACCENTS):
    with pytest.raises(ValueError, match="lower case and without accents, and"):
      open_vocabulary.load(str(tmp_path), **options)
  assert open_vocabulary.load(str(tmp_path), lower_case=True).lower_case


def test_the_lines_are_in_27_languages():
  assert len(LANGUAGES) == 27 and {
    len(lines) for lines in LANGUAGES.values()
  } == {5}
  assert "korean, decomposed" in TEXTS and len(set(LINES)) == len(LINES)
