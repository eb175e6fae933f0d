"""Compares augmentation with a second implementation; tests the command."""

import itertools
import random
import re
import subprocess
import sys

import numpy as np
import pytest
import tiny_tasks
from children import without_progress
from tiny_families import fast_jit

from bert_jax import hashing
from bert_jax.cli import augment
from bert_jax.cli.main import parser_of
from bert_jax.tasks import task_inputs
from bert_jax.tasks.files import glue
from bert_jax.use import augment_task, augmentation, predict, word_vectors
from bert_jax.weights.load import open_model

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")

# The word "cats" has two pieces, "ox" is unknown, and "it" is a stop word.
WORDS = (*tiny_tasks.WORDS, "cats", "it", "ox", "?", "12")
OPTIONS = augmentation.Options(
  num_samples=6, threshold=0.5, num_candidates=4, seed=3
)
# A file of word vectors. By cosine, "dogs" is nearest to "cats".
VECTORS_TEXT = """cats 1 0 0
Cats 0 0 1
dogs 3 0.3 0
birds 0 0 -2
trees -1 0 0
birds 1 0 0
of two 0.1 0.1 0
"""


@pytest.fixture(scope="module")
def input_folder(tmp_path_factory):
  """Returns a folder with models, word vectors and a training file."""
  path = tmp_path_factory.mktemp("augment")
  tiny_tasks.write_model(path / "model")
  tiny_tasks.write_fine_tuned(path / "tuned", "classification")
  (path / "vectors.txt").write_text(VECTORS_TEXT)
  rng = random.Random(0)
  texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 7))) for _ in range(9)]
  table_lines = [
    f"{text} \t{i % 2}\n" for i, text in enumerate([*texts, texts[0]])
  ]
  (path / "train.tsv").write_text("sentence\tlabel\n" + "".join(table_lines))
  return path


@pytest.fixture(scope="module")
def predictor(input_folder):
  path = str(input_folder / "model")
  return predict.open_predictor(
    path, batch_size=4, top_k=OPTIONS.num_candidates
  )


@pytest.fixture(scope="module")
def find_likeliest_words(input_folder):
  """Returns a function that finds the words that the module thinks likeliest.

  Its arguments are the ids of a text, the index of the masked token, and the
  number of candidates.
  """
  model = open_model(str(input_folder / "model"))
  apply = fast_jit(model.module.apply)
  length = model.module.encoder.max_length

  def find(ids, index, count):
    # 2 is [CLS], 3 is [SEP], and 4 is [MASK].
    row = [2, *ids, 3, *ids, 3][:length]
    row[1 + index] = 4
    input_ids = np.zeros((1, length), np.int32)
    input_ids[0, : len(row)] = row
    is_token = np.arange(length) < len(row)
    is_second = is_token & (np.arange(length) >= len(ids) + 2)
    batch = dict(
      input_ids=input_ids,
      sequence_ids=is_token.astype(np.int32)[None],
      segment_ids=is_second.astype(np.int32)[None],
      mlm_positions=np.array([[1 + index]], np.int32),
      cls_positions=np.zeros((1, 1), np.int32),
    )
    logits = apply({"params": model.params}, batch)["mlm_logits"][0, 0]
    best_ids = np.argsort(-np.asarray(logits))[:count]
    pieces = [tiny_tasks.PIECES[i] for i in best_ids]
    return [piece for piece in pieces if not re.match(r"##|\[.*\]$", piece)]

  return find


def expected_variants(text, line_number, find_likeliest_words, near_words):
  """Returns a text and its variants, computed without `augmentation`."""
  pieces = tiny_tasks.PIECES
  words = re.findall(r"[a-z0-9]+|\?", text.lower())
  pieces_by_word = [
    [word]
    if word in pieces
    else ["cat", "##s"]
    if word == "cats"
    else ["[UNK]"]
    for word in words
  ]
  ids = [
    pieces.index(piece)
    for word_pieces in pieces_by_word
    for piece in word_pieces
  ]
  first_pieces = [0, *itertools.accumulate(map(len, pieces_by_word))]
  candidates_by_word = {}
  for i, word in enumerate(words):
    if not word.isalpha() or word in ("it", "of"):
      continue
    candidates = near_words.get(word, [])
    if len(pieces_by_word[i]) == 1:
      candidates = find_likeliest_words(
        ids, first_pieces[i], OPTIONS.num_candidates
      )
    candidates_by_word[i] = candidates or [word]
  key_labels = ["augment", OPTIONS.seed, 0]
  replace_key = hashing.make_key(*key_labels, "which")
  choice_key = hashing.make_key(*key_labels, "what")
  sentences = [text]
  for sample in range(OPTIONS.num_samples):
    new_words = list(words)
    for i, candidates in candidates_by_word.items():
      draw_number = sample * len(words) + i
      if (
        hashing.uniform(replace_key, line_number, draw_number)
        < OPTIONS.threshold
      ):
        num_candidates = len(candidates)
        chosen_index = int(
          hashing.randint(choice_key, line_number, draw_number, num_candidates)
        )
        new_words[i] = candidates[chosen_index]
    if " ".join(new_words) not in sentences:
      sentences.append(" ".join(new_words))
  return sentences


@pytest.mark.parametrize("has_vectors", [False, True])
def test_variants_follow_the_published_rules(
  input_folder, predictor, find_likeliest_words, has_vectors
):
  vectors, near_words = None, {}
  if has_vectors:
    vectors = word_vectors.read(str(input_folder / "vectors.txt"))
    near_words = {"cats": ["dogs", "of two", "Cats", "birds"]}
  lines = (input_folder / "train.tsv").read_text().splitlines()[1:]
  lines = [line.split("\t") for line in lines]
  examples = [augmentation.Example((text,), label) for text, label in lines]
  variants = [
    *augmentation.add_variants(
      predictor, vectors=vectors, options=OPTIONS, examples=examples
    )
  ]
  expected = [
    ((sentence,), label)
    for line_number, (text, label) in enumerate(lines)
    for sentence in expected_variants(
      text, line_number, find_likeliest_words, near_words
    )
  ]
  assert variants == expected and len(variants) > 40
  # The first line and the last line have the same text, but different variants.
  first_variants = [
    variant.texts[0] for variant in variants if variant.label == "0"
  ][1:4]
  assert first_variants != [variant.texts[0] for variant in variants][-3:]


def test_a_variant_of_a_pair_changes_one_text(predictor):
  text, pair = "red cat runs .", "blue dog sings"
  example = augmentation.Example((text, pair), "x")
  variants = [
    *augmentation.add_variants(
      predictor, vectors=None, options=OPTIONS, examples=[example]
    )
  ]
  assert variants[0] == example and {variant.label for variant in variants} == {
    "x"
  }
  for variant in variants[1:]:
    assert (variant.texts[0] == text) != (variant.texts[1] == pair)
  assert {variant.texts[0] for variant in variants} > {text}
  assert {variant.texts[1] for variant in variants} > {pair}


def test_only_words_of_letters_that_are_no_stop_words_are_replaced():
  for word in ("it", "The", "don", "s", "3d", "café", "?", ""):
    assert not augmentation.is_replaceable(word), word
  for word in ("film", "What", "who", "USA"):
    assert augmentation.is_replaceable(word), word
  assert len(augmentation.STOP_WORDS) == 145


def test_only_words_within_the_row_may_change(predictor):
  """A word beyond the row's end must have no candidate but itself."""
  length = predictor.max_length
  words = ["cat"] * (length + 5)
  (text,) = augmentation.split_into_words(
    predictor.vocabulary, [" ".join(words)]
  )
  (candidates,) = augmentation.find_candidates(
    predictor, vectors=None, texts=[text], count=4
  )
  assert all(candidates[i] == ["cat"] for i in range(length - 1, len(words)))
  assert all(len(candidates[i]) > 1 for i in range(length - 1))
  rows, positions = augmentation.masked_rows(
    [(text.ids, length - 2)], predictor.vocabulary.special, length
  )
  assert rows.starts.tolist() == [0, length] and rows.second_begins == [length]
  assert rows.ids[positions[0]] == 4 and positions == [length - 1]


def test_the_nearest_words_are_those_with_the_largest_cosine(input_folder):
  vectors = word_vectors.read(str(input_folder / "vectors.txt"))
  # If a word has two lines, the first one is used.
  assert vectors.nearest("cats", 2) == ["dogs", "of two"]
  # The words that are near to "Cats" are returned with a capital.
  assert vectors.nearest("Cats", 3) == ["Cats", "Dogs", "Trees"]
  assert vectors.nearest("cow", 3) == []
  assert len(vectors.nearest("cats", 99)) == 5
  first_vectors = word_vectors.read(
    str(input_folder / "vectors.txt"), max_lines=3
  )
  assert first_vectors.words == ["cats", "Cats", "dogs"]


def parse_command(input_folder, **flags):
  flags = (
    dict(
      model=input_folder / "model",
      task="sst2",
      input=input_folder / "train.tsv",
      output=input_folder / "out.tsv",
      samples=5,
      candidates=4,
    )
    | flags
  )
  return parser_of("augment").parse(
    [f"--{flag}={setting}" for flag, setting in flags.items()]
  )


def test_the_output_can_be_read_as_the_tasks_file(input_folder, capsys):
  augment.run(parse_command(input_folder, vectors=input_folder / "vectors.txt"))
  first_output = (input_folder / "out.tsv").read_bytes()
  augment.run(parse_command(input_folder, vectors=input_folder / "vectors.txt"))
  assert (input_folder / "out.tsv").read_bytes() == first_output
  augment.run(
    parse_command(input_folder, vectors=input_folder / "vectors.txt", seed=1)
  )
  assert (input_folder / "out.tsv").read_bytes() != first_output
  task = task_inputs.find_task("sst2")
  augmented_examples = task_inputs.read(
    task, [task_inputs.Input("train", str(input_folder / "out.tsv"))]
  ).splits["train"]
  source_examples = task_inputs.read(
    task, [task_inputs.Input("train", str(input_folder / "train.tsv"))]
  ).splits["train"]
  assert len(source_examples) == 10 < len(augmented_examples)
  texts = [
    (example["texts"], example["label"]) for example in augmented_examples
  ]
  for example in source_examples:
    assert (example["texts"], example["label"]) in texts
  assert not list(input_folder.glob("*.partial"))
  output = input_folder / "out.tsv"
  assert capsys.readouterr().out.splitlines()[-2:] == [
    f"{output}: {len(augmented_examples)} examples of 10",
    f"next: bert_jax prepare-task --task sst2 --input train={output}"
    f" --vocab {input_folder / 'model'} --output data/sst2_augmented",
  ]


@pytest.mark.parametrize("task", glue.TEXT_COLUMNS)
def test_every_task_reads_a_file_with_its_output_columns(tmp_path, task):
  task_format, columns = augment_task.task_and_columns(
    task, kind=None, columns=None
  )
  label = (task_format.task.labels or ("2.5",))[-1]
  texts = [f"a {i} cat" for i in range(len(columns) - 1)]
  lines = ["\t".join(columns), "\t".join([*texts, label])]
  (tmp_path / "a.tsv").write_text("\n".join(lines) + "\n")
  (example,) = task_inputs.read(
    task_format, [task_inputs.Input("train", str(tmp_path / "a.tsv"))]
  ).splits["train"]
  assert (example["texts"], str(example["label"])) == (texts, label)


def test_a_custom_task_keeps_its_columns(input_folder):
  csv_lines = '"a, red cat","b\tdog",1.5\n"cat","bird",2\n'
  (input_folder / "own.csv").write_text("x,y,z\n" + csv_lines)
  source = input_folder / "own.csv"
  options = dict(columns="text=x,pair=y,label=z", kind="regression")
  augment.run(
    parse_command(input_folder, task="likeness", input=source, **options)
  )
  lines = (input_folder / "out.tsv").read_text().splitlines()
  assert lines[:2] == ["x\ty\tz", "a, red cat\tb dog\t1.5"]
  assert {line.split("\t")[2] for line in lines[1:]} == {"1.5", "2.0"}


@pytest.mark.parametrize(
  "flags, message",
  [
    (dict(task="sst3"), "sst3 names no task; did you mean sst2"),
    (dict(task="squad"), "squad cannot be augmented; choose one of cola, sst2"),
    (dict(samples=0), "--samples=0 must be at least 1"),
    (dict(threshold=1.5), "threshold=1.5 must be from 0 to 1"),
    (dict(output="x.csv"), "x.csv must end in .tsv"),
    (dict(input="nowhere.tsv"), "there is no file .*nowhere.tsv"),
    (dict(input="bad.tsv"), "bad.tsv:3: label '7' is not one of 0, 1"),
    (
      dict(input="tab.csv", task="own", columns="text=x,label=y"),
      r"tab.csv:2: label 'a\\tb' has a tab",
    ),
    (
      dict(vectors="bad.txt"),
      "bad.txt:2: the line must have a word and 3 finite numbers",
    ),
    (dict(vectors="header.txt"), "header.txt:1: .* without a header"),
    (dict(vectors="nowhere.txt"), "there is no file .*nowhere.txt"),
    (dict(model="tuned"), "is a model for classification; augmentation needs"),
  ],
)
def test_bad_input_gets_one_sentence(input_folder, flags, message):
  (input_folder / "bad.tsv").write_text("sentence\tlabel\na cat\t1\na dog\t7\n")
  (input_folder / "tab.csv").write_text('x,y\na cat,"a\tb"\na dog,c\n')
  (input_folder / "bad.txt").write_text("a 1 2 3\nb 1 2\n")
  (input_folder / "header.txt").write_text("4000 300\na 1 2 3\n")
  files = ("input", "model", "vectors")
  flags = {
    flag: input_folder / setting if flag in files else setting
    for flag, setting in flags.items()
  }
  with pytest.raises(ValueError, match=message) as error:
    augment.run(
      parse_command(
        input_folder, **({"output": input_folder / "none.tsv"} | flags)
      )
    )
  assert "\n" not in str(error.value)
  assert not list(input_folder.glob("none.tsv*"))


def test_an_error_of_the_command_has_no_traceback(input_folder):
  source = input_folder / "train.tsv"
  process = subprocess.run(
    [
      *(sys.executable, "-m", "bert_jax", "augment", "--model=x"),
      *("--task=sst2", f"--input={source}", f"--output={source}"),
    ],
    capture_output=True,
    text=True,
  )
  assert process.returncode == 1 and not process.stdout
  error = without_progress(process.stderr)
  assert error.startswith("error: the output ")
  assert error.endswith("is the input; choose another file for the output.\n")
