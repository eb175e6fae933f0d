"""Tests custom tasks: spellings of labels, and files of words with tags."""

import finetune_files as files
import pytest

from bert_jax.tasks import task_inputs
from bert_jax.tasks.task_inputs import Input

LABEL_COLUMNS = "text=text,label=label"


def read_contents(inputs, name="mine", **options):
  task = task_inputs.find_task(name, **options)
  return task_inputs.read(task, [Input(*pair) for pair in inputs.items()])


def labels_of(contents, split):
  return [example["label"] for example in contents.splits[split]]


def test_minus_one_is_a_class_of_a_custom_task(tmp_path):
  table_path = files.write_text(
    tmp_path / "a.tsv", "text\tlabel\na\t-1\nb\t0\nc\t1\n"
  )
  lines = [{"text": "a", "label": -1}, {"text": "b", "label": None}]
  lines += [{"text": "c", "label": " "}, {"text": "d"}]
  test_path = files.write_jsonl(tmp_path / "b.jsonl", lines)
  contents = read_contents(
    {"train": table_path, "test": test_path}, columns=LABEL_COLUMNS
  )
  assert contents.task.labels == ("-1", "0", "1")
  assert labels_of(contents, "train") == ["-1", "0", "1"]
  assert labels_of(contents, "test") == ["-1", None, None, None]
  # In a published task, -1 means that the label is hidden.
  table_path = files.write_text(tmp_path / "c.tsv", "sentence\tlabel\na\t-1\n")
  (example,) = task_inputs.read(
    task_inputs.find_task("sst2"), [Input("test", table_path)]
  ).splits["test"]
  assert example["label"] is None
  with pytest.raises(
    ValueError, match=r"c\.tsv:2 has no label in column 'label'"
  ):
    task_inputs.read(
      task_inputs.find_task("sst2"), [Input("train", table_path)]
    )


def test_equal_whole_numbers_are_one_class(tmp_path):
  lines = [
    {"text": "a", "label": label} for label in (0, 1.0, 1, 2.5, -0.0, 1e3)
  ]
  path = files.write_jsonl(tmp_path / "a.jsonl", lines)
  contents = read_contents({"train": path}, columns=LABEL_COLUMNS)
  assert labels_of(contents, "train") == ["0", "1", "1", "2.5", "0", "1000"]
  assert contents.task.labels == ("0", "1", "1000", "2.5")
  # --labels sets the spelling: its labels are not changed.
  lines = [{"text": "a", "label": label} for label in (0.0, 1.0)]
  path = files.write_jsonl(tmp_path / "b.jsonl", lines)
  for label_names in (["0", "1"], ["0.0", "1.0"]):
    contents = read_contents(
      {"train": path}, columns=LABEL_COLUMNS, labels=label_names
    )
    assert labels_of(contents, "train") == label_names
  path = files.write_text(tmp_path / "c.jsonl", '{"text": "a", "label": NaN}')
  with pytest.raises(ValueError, match=r"c\.jsonl:1: label nan is neither a n"):
    read_contents({"train": path}, columns=LABEL_COLUMNS)


WORDS_BY_SENTENCE = [["in", "New", "York"], ["it", "ran"]]
TAGS_BY_SENTENCE = [["O", "B-LOC", "I-LOC"], ["O", "O"]]
COLUMNS_BY_NAME, COLUMNS_BY_NUMBER = "words=tokens,tags=ner", "words=2,tags=1"
TAGGED_TABLE = (
  "n\ttokens\tner\n7\tin New  York\tO B-LOC I-LOC\n8\tit ran \tO O\n"
)
TAGS_BEFORE_WORDS = "O\tin\nB-LOC\tNew\nI-LOC\tYork\n\nO\tit\nO\tran\n"
# Each case has (the file's name, --columns, the file's content).
TAGGED_FILES = [
  ("a.tsv", COLUMNS_BY_NAME, TAGGED_TABLE),
  ("a.txt", COLUMNS_BY_NAME, TAGGED_TABLE),
  (
    "a.csv",
    COLUMNS_BY_NAME,
    'tokens,ner\nin New York,O B-LOC I-LOC\n"it\nran",O O\n',
  ),
  ("a.tsv", COLUMNS_BY_NUMBER, TAGS_BEFORE_WORDS),
  (
    "a.conll",
    COLUMNS_BY_NUMBER,
    "O -X- -DOCSTART-\n\n" + TAGS_BEFORE_WORDS.replace("\t", " "),
  ),
  (
    "a.csv",
    "words=2,tags=-1",
    "1\tin\tO\n2\tNew\tB-LOC\n3\tYork\tI-LOC\n\n1\tit\tO\n2\tran\tO\n",
  ),
  ("a.conll", None, "in x O\nNew x B-LOC\nYork x I-LOC\n\nit x O\nran x O\n"),
]


@pytest.mark.parametrize("name, columns, content", TAGGED_FILES)
def test_words_and_tags_are_read_from_every_format(
  tmp_path, name, columns, content
):
  path = files.write_text(tmp_path / name, content)
  contents = read_contents({"train": path}, kind="tagging", columns=columns)
  examples = contents.splits["train"]
  assert [example["words"] for example in examples] == WORDS_BY_SENTENCE
  assert [example["tags"] for example in examples] == TAGS_BY_SENTENCE
  assert contents.task.labels == ("O", "B-LOC", "I-LOC")
  # Lists in JSON give the same examples.
  lines = [
    dict(tokens=words, ner=tags)
    for words, tags in zip(WORDS_BY_SENTENCE, TAGS_BY_SENTENCE, strict=True)
  ]
  path = files.write_jsonl(tmp_path / "b.jsonl", lines)
  json_contents = read_contents(
    {"train": path}, kind="tagging", columns=COLUMNS_BY_NAME
  )
  assert json_contents.splits["train"] == [
    example | {"document": None} for example in examples
  ]


def test_a_split_may_have_words_without_tags(tmp_path):
  train_path = files.write_text(tmp_path / "a.tsv", TAGGED_TABLE)
  # A no-break space is part of a word.
  test_path = files.write_text(
    tmp_path / "b.tsv", "n\ttokens\nx\tin 5\u00a0km\n"
  )
  path_without_tags = files.write_text(
    tmp_path / "c.tsv", "n\ttokens\tner\nx\tin\t\n"
  )
  inputs = {"train": train_path, "test": test_path, "more": path_without_tags}
  contents = read_contents(
    inputs, kind="tagging", columns=COLUMNS_BY_NAME + ",id=n"
  )
  (example,) = contents.splits["test"]
  assert (example["words"], example["tags"]) == (["in", "5\u00a0km"], None)
  assert example["id"] == "x" and contents.splits["more"][0]["tags"] is None
  with pytest.raises(
    ValueError, match=r"c\.tsv:2 has no tags; training needs th"
  ):
    read_contents(
      {"train": path_without_tags}, kind="tagging", columns=COLUMNS_BY_NAME
    )
  train_path = files.write_text(tmp_path / "d.conll", TAGS_BEFORE_WORDS)
  test_path = files.write_text(tmp_path / "e.conll", "in\nRome\n")
  contents = read_contents(
    {"train": train_path, "test": test_path},
    kind="tagging",
    columns=COLUMNS_BY_NUMBER,
  )
  (example,) = contents.splits["test"]
  assert (example["words"], example["tags"]) == (["in", "Rome"], None)
  with pytest.raises(
    ValueError, match=r"e\.conll:1 has no tags: the first line has one column"
  ):
    read_contents(
      {"train": test_path}, kind="tagging", columns=COLUMNS_BY_NUMBER
    )


# Each case has (the file's name, --columns, the file's content, the message).
BAD_FILES = [
  (
    "x.tsv",
    COLUMNS_BY_NAME,
    "tokens\tner\na\tO\na b\tO\n",
    r"x\.tsv:3 has 1 tags for 2 wo",
  ),
  (
    "x.csv",
    COLUMNS_BY_NAME,
    "tokens,ner\na,O\n\nb,O x\n",
    r"x\.csv:4 has 2 tags for 1 wor",
  ),
  (
    "x.tsv",
    COLUMNS_BY_NAME,
    "tokens\tner\na b\tO B-X\na b c\tO O x\n",
    r"x\.tsv:3: tag 'x' is not O",
  ),
  (
    "x.tsv",
    COLUMNS_BY_NAME,
    "tokens\nin\n",
    r"x\.tsv:2 has no column 'ner'; the columns are",
  ),
  # The first line is "O\tin", so the columns are named "O" and "in".
  (
    "x.tsv",
    COLUMNS_BY_NAME,
    TAGS_BEFORE_WORDS,
    r"x\.tsv:1 has no column 'tokens'; the columns are O, in\. .* "
    r"numbers of columns, for a file with a word on each line"
    r" \(words=1,tags=2\)",
  ),
  ("x.tsv", COLUMNS_BY_NUMBER, "B-X b\n\na b\n", r"x\.tsv:3: tag 'a' is not O"),
  (
    "x.tsv",
    COLUMNS_BY_NUMBER,
    "a b\n\n",
    r"split train has 1 labels \(a\); a task of kind tagging",
  ),
  (
    "x.tsv",
    COLUMNS_BY_NUMBER,
    "O\ta\nB-X\n",
    r"x\.tsv:2 has 1 columns, but the first li",
  ),
  (
    "x.tsv",
    COLUMNS_BY_NUMBER,
    "O\ta\nB\tb\nI-X\tb",
    r"x\.tsv:2: tag 'B' is not O",
  ),
  (
    "x.tsv",
    "words=3,tags=1",
    TAGS_BEFORE_WORDS,
    r"x\.tsv:1 has no column 3 for the words",
  ),
  (
    "x.tsv",
    "words=1,tags=-3",
    TAGS_BEFORE_WORDS,
    r"x\.tsv:1 has no column -3 for the tags",
  ),
  # Without tags=, the tags are in column -1, which is the last one.
  (
    "x.tsv",
    "words=2",
    TAGS_BEFORE_WORDS,
    r"x\.tsv:1: with 2 columns, column 2 and column -1 are the same",
  ),
  # A file with a word on each line has no ids of sentences.
  (
    "x.tsv",
    COLUMNS_BY_NUMBER + ",id=3",
    TAGS_BEFORE_WORDS,
    r"x\.tsv: --columns says id=3, but a fi",
  ),
]


@pytest.mark.parametrize("name, columns, content, message", BAD_FILES)
def test_bad_words_and_tags_are_refused(
  tmp_path, name, columns, content, message
):
  path = files.write_text(tmp_path / name, content)
  with pytest.raises(ValueError, match=message):
    read_contents({"train": path}, kind="tagging", columns=columns)


def test_an_error_names_the_line(tmp_path):
  lines = [{"tokens": ["a", "b"], "ner": ["B-X", "x"]}]
  path = files.write_jsonl(tmp_path / "a.jsonl", lines)
  with pytest.raises(ValueError, match=r"a\.jsonl:1: tag 'x' is not O, B-TYPE"):
    read_contents({"train": path}, kind="tagging", columns=COLUMNS_BY_NAME)
  path = files.write_text(tmp_path / "b.csv", "a cat,yes\nb,no\n")
  with pytest.raises(
    ValueError,
    match=r"b\.csv:1 has no column 'text'; the columns are "
    "a cat, yes. The first line of a table names its columns",
  ):
    read_contents({"train": path}, columns=LABEL_COLUMNS)
