"""Tests warnings and limits when vocabularies of many languages are trained."""

import pytest
from languages import LANGUAGES, TEXTS

from bert_jax.corpus import prepare, train_vocab
from bert_jax.text import cleaning, open_vocabulary

pytest.importorskip("sentencepiece", reason="the extra [data] is not there")
STRIP_ACCENTS = {}
KEEP_ACCENTS = dict(keep_accents=True)
KEEP_CASE = dict(lower_case=False)


@pytest.mark.parametrize(
  "algorithm, language, share",
  [
    ("wordpiece", "hindi", "20%"),
    ("wordpiece", "thai", "18%"),
    ("unigram", "hindi", "4%"),
    ("unigram", "japanese", "8%"),
    ("wordpiece", "french", None),
    ("wordpiece", "vietnamese, decomposed", None),
    ("unigram", "russian", None),
    ("unigram", "hebrew", None),
  ],
)
def test_stripped_marks_that_are_no_accents_are_counted(
  algorithm, language, share
):
  """Counts marks that stripping accents would remove, but that letters need.

  The warning must have the share of the characters that would change.
  """
  counter = cleaning.MarkCounter(by_combining_class=algorithm == "unigram")
  for line in TEXTS[language]:
    counter.add(line)
  warning = counter.warning()
  assert warning is None if share is None else f"warning: {share} of" in warning


def test_training_warns_that_it_strips_marks(tmp_path, capsys):
  text_path = tmp_path / "text.txt"
  text_path.write_text("\n".join(LANGUAGES["hindi"]), encoding="utf-8")
  for options, must_warn in (
    (STRIP_ACCENTS, True),
    (KEEP_ACCENTS, False),
    (KEEP_CASE, False),
  ):
    output = str(tmp_path / "-".join(["v", *options]))
    train_vocab.train_vocab(str(text_path), size=100, output=output, **options)
    assert ("--keep-accents keeps them" in capsys.readouterr().err) == must_warn


def test_long_words_give_warnings(tmp_path, capsys):
  """Trains on a sentence without spaces, which counts as one word.

  There must be a warning for WordPiece, which makes this word [UNK], and for a
  unigram model, which masks either all pieces of the word or none.
  """
  text_path = tmp_path / "text.txt"
  line = "".join(LANGUAGES["thai"]).replace(" ", "")
  assert len(line) > 100
  text_path.write_text(f"{line}\n\n{line} a\n", encoding="utf-8")
  train_vocab.train_vocab(
    str(text_path), size=100, output=str(tmp_path / "v.txt")
  )
  assert "100% of the text are words of more than 100" in (
    capsys.readouterr().err
  )
  output = str(tmp_path / "thai.model")
  train_vocab.train_vocab(
    str(text_path),
    size=100,
    output=output,
    algorithm="unigram",
    keep_accents=True,
  )
  for rule, must_warn in (("space", True), ("albert", False)):
    prepare.prepare(
      str(text_path),
      output,
      str(tmp_path / rule),
      processes=1,
      word_starts=rule,
    )
    assert ("--word-starts=albert" in capsys.readouterr().err) == must_warn


def test_long_lines_are_not_dropped(tmp_path):
  """Trains on a line of over 20,000 bytes; its characters must be known.

  SentencePiece by itself would leave out lines of more than 4,192 bytes.
  """
  text_path = tmp_path / "text.txt"
  line = " ".join(LANGUAGES["hindi"] * 20) + "".join(LANGUAGES["thai"] * 40)
  assert len(line.encode()) > 20_000
  text_path.write_text(line + "\n", encoding="utf-8")
  output = str(tmp_path / "long.model")
  train_vocab.train_vocab(
    str(text_path),
    size=300,
    output=output,
    algorithm="unigram",
    keep_accents=True,
  )
  vocabulary = open_vocabulary.load(output)
  (ids,) = vocabulary.encode_batch([line])
  assert vocabulary.special.unk not in ids and len(ids) < len(line)


def test_many_characters_are_pieces_of_a_large_vocabulary(tmp_path):
  """Trains on 1,500 characters; all must be pieces.

  Hugging Face's trainer by itself would keep 1,000 characters.
  """
  characters = [chr(0x4E00 + i) for i in range(1500)]
  text_path = tmp_path / "text.txt"
  text_path.write_text("".join(characters) * 2, encoding="utf-8")
  output = str(tmp_path / "vocab.txt")
  pieces = train_vocab.train_vocab(str(text_path), size=4000, output=output)
  assert set(characters) <= set(pieces)
