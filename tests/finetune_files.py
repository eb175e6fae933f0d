"""Writes small files in the formats of the tasks, and small vocabularies."""

import json
import string

from bert_jax.text import open_vocabulary

WORDS = ["a", "b", "the", "cat", "sat", "on", "mat", "dog", "ran", "good"]
WORDS += ["bad", "film", "pure", "land", "school"]
CHARACTERS = string.ascii_lowercase + string.digits + string.punctuation
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = list(
  dict.fromkeys(
    [
      *SPECIAL_TOKENS,
      *WORDS,
      *CHARACTERS,
      *(f"##{c}" for c in CHARACTERS),
      "é",
      "##é",
    ]
  )
)
ID_OF_PIECE = {piece: i for i, piece in enumerate(PIECES)}


def write_text(path, text):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(text.encode("utf-8"))
  return str(path)


def write_jsonl(path, records):
  return write_text(
    path, "".join(json.dumps(record) + "\n" for record in records)
  )


def write_wordpiece(folder):
  return write_text(
    folder / "vocab.txt", "".join(f"{piece}\n" for piece in PIECES)
  )


def write_roberta(folder):
  """Writes RoBERTa's special tokens and all bytes as pieces, without merges."""
  from tokenizers import pre_tokenizers

  pieces = ["<s>", "<pad>", "</s>", "<unk>"]
  pieces += sorted(pre_tokenizers.ByteLevel.alphabet())
  id_of_piece = {piece: i for i, piece in enumerate([*pieces, "<mask>"])}
  write_text(folder / "roberta" / "merges.txt", "#version: 0.2\n")
  write_text(folder / "roberta" / "vocab.json", json.dumps(id_of_piece))
  return str(folder / "roberta")


def write_gpt1(folder):
  """Writes a vocabulary of GPT-1's BPE without merges."""
  letters = string.ascii_lowercase
  pieces = ["<unk>", *letters, *(f"{letter}</w>" for letter in letters)]
  id_of_piece = {piece: i for i, piece in enumerate(pieces)}
  write_text(folder / "gpt1" / "merges.txt", "#version: 0.2\n")
  write_text(folder / "gpt1" / "vocab.json", json.dumps(id_of_piece))
  return str(folder / "gpt1")


def load_vocabulary(path):
  return open_vocabulary.load(path)


def squad_json(paragraphs):
  """Returns JSON as in SQuAD's files.

  Args:
    paragraphs: [(context, [(id, question, answers)])]; the answers of a
      question are [(text, start)].
  """
  paragraph_dicts = []
  for context, questions in paragraphs:
    qas = []
    for question_id, question, answers in questions:
      spans = [dict(text=text, answer_start=start) for text, start in answers]
      qas.append(dict(id=question_id, question=question, answers=spans))
    paragraph_dicts.append(dict(context=context, qas=qas))
  articles = [dict(title="t", paragraphs=paragraph_dicts)]
  return json.dumps(dict(version="1.1", data=articles))
