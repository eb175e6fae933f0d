"""Tests the counts of examples whose choices lose tokens in short rows."""

import json

import finetune_files as files
import numpy as np
import pytest

from bert_jax.cli.main import execute
from bert_jax.tasks import encoded_rows, prepare_task, task_inputs
from bert_jax.tasks.task_inputs import Input

WORDS = files.WORDS
LOST_NOTE = "examples whose choices lost tokens"
EQUAL_NOTE = "examples with choices that became equal"
CUT_NOTE = "texts cut to the length"


def random_words(count, seed=0):
  return " ".join(np.random.default_rng(seed).choice(WORDS, count))


def prepare_and_count(folder, passage, question, options, length=512):
  """Prepares one question of RACE.

  Returns:
    A dict from each note to its number of examples or texts; and the number of
    different rows.
  """
  content = dict(
    article=passage, questions=[question], options=[options], answers=["A"]
  )
  files.write_text(folder / "race" / "1.txt", json.dumps(content))
  inputs = [Input("train", str(folder / "race"))]
  meta = prepare_task.prepare(
    task_inputs.find_task("race"),
    inputs,
    files.write_wordpiece(folder),
    str(folder / "out"),
    length,
  )
  _, rows, _ = encoded_rows.load(str(folder / "out"), "train")
  ids = np.split(rows.ids, rows.starts[1:-1])
  counts = {note: count for note, (count, _) in meta["notes"]["train"].items()}
  return counts, len({row.tobytes() for row in ids})


# A row of 512 tokens has space for 509 tokens of texts. Two long texts get 255
# and 254 of them. The first three parameters are numbers of words. If
# `question_words` is negative, the question is a blank and then that many
# words.
@pytest.mark.parametrize(
  "passage_words, question_words, option_words, suffix, expected_counts,"
  " num_different_rows",
  [
    # No token of an option fits, so the four rows are equal.
    (600, 290, 10, "", {CUT_NOTE: 4, LOST_NOTE: 1, EQUAL_NOTE: 1}, 1),
    # Half of the tokens of an option fit.
    (600, 250, 8, "", {CUT_NOTE: 4, LOST_NOTE: 1}, 4),
    # Only the passage is cut.
    (600, 100, 10, "", {CUT_NOTE: 4}, 4),
    # Only the end that all options share is cut.
    (600, 244, 10, "cat cat", {CUT_NOTE: 4}, 4),
    # Only the question's part after the blank is cut.
    (600, -300, 10, "", {CUT_NOTE: 4}, 4),
    (300, 100, 10, "", {}, 4),
  ],
)
def test_options_that_are_cut_are_counted(
  tmp_path,
  passage_words,
  question_words,
  option_words,
  suffix,
  expected_counts,
  num_different_rows,
):
  options = [
    f"{random_words(option_words, seed=seed)} {suffix}" for seed in range(1, 5)
  ]
  question_text = (
    random_words(question_words)
    if question_words > 0
    else "_ " + random_words(-question_words)
  )
  counts = prepare_and_count(
    tmp_path, random_words(passage_words, seed=9), question_text, options
  )
  assert counts == (expected_counts, num_different_rows)


def test_options_that_were_equal_before_are_not_counted(tmp_path):
  options = [random_words(10, seed=seed) for seed in (1, 1, 2, 3)]
  assert prepare_and_count(
    tmp_path, random_words(600, seed=9), random_words(100), options
  ) == ({CUT_NOTE: 4}, 3)


def test_the_command_prints_the_examples(tmp_path, capsys):
  """A printed line has the number of examples of a note, and their ids."""
  header = ",sent1,sent2,ending0,ending1,ending2,ending3,label\n"
  examples = [
    f"{i},{random_words(30, seed=i)},{random_words(size)},a,b,cat,dog,1\n"
    for i, size in enumerate((30, 5, 40))
  ]
  path = files.write_text(tmp_path / "a.csv", header + "".join(examples))
  flags = ["--task=swag", f"--input=train={path}", "--length=32"]
  flags += [f"--vocab={files.write_wordpiece(tmp_path)}"]
  flags += [f"--output={tmp_path / 'out'}"]
  execute(["prepare-task", *flags])
  lines = capsys.readouterr().err.splitlines()
  assert f"train: 2 {LOST_NOTE}: 0, 2" in lines
  assert f"train: 2 {EQUAL_NOTE}: 0, 2" in lines
