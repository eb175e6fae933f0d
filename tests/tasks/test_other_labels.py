"""Tests labels that are 0 and 1, lists in tables, and schemes of tags."""

import json
import re

import finetune_files as files
import numpy as np
import pytest
import tiny_tasks

from bert_jax.cli.main import execute
from bert_jax.models import bert, heads
from bert_jax.tasks import metrics, server_files, task_inputs
from bert_jax.tasks.encoded_rows import Task
from bert_jax.tasks.files import tags
from bert_jax.tasks.task_inputs import Input
from bert_jax.use import predict

COLUMNS = "text=text,label=labels"


def read_contents(inputs, kind="multi_label", columns=COLUMNS, **options):
  task = task_inputs.find_task("mine", kind=kind, columns=columns, **options)
  return task_inputs.read(task, [Input(*pair) for pair in inputs.items()])


def labels_of(contents, split="train"):
  return [example["label"] for example in contents.splits[split]]


def write_csv(path, values, header="text,labels"):
  quoted_cells = ['"' + cell.replace('"', '""') + '"' for cell in values]
  return files.write_text(
    path, "\n".join([header, *(f"a,{cell}" for cell in quoted_cells), ""])
  )


def write_lists(path, values):
  return files.write_jsonl(
    path, [{"text": "a", "labels": labels} for labels in values]
  )


@pytest.mark.parametrize(
  "values",
  [
    [[0, 0, 1], [1, 0, 0], [0, 0, 0]],
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
    [[False, False, True], [True, False, False], [False] * 3],
    ["[0, 0, 1]", "[1, 0, 0]", "[0, 0, 0]"],
    ["0,0,1", "1,0,0", "0,0,0"],
    ["0 0 1", " 1  0\t0 ", "0 0 0"],
    ["0|0|1", "1; 0; 0", "0, 0, 0"],
    ["FALSE,FALSE,TRUE", "TRUE FALSE FALSE", "False;false;FALSE"],
    [["FALSE", "FALSE", "TRUE"], ["TRUE", "false", "0"], [0, "0", False]],
    ["[0.0, 0.0, 1.0]", "(1, 0, 0)", "[False, False, False]"],
  ],
)
def test_a_list_with_0_or_1_for_each_label_is_read(tmp_path, values):
  path = write_lists(tmp_path / "a.jsonl", values)
  contents = read_contents({"train": path}, labels=["joy", "hope", "fear"])
  assert labels_of(contents) == [["fear"], ["joy"], []]
  assert not contents.notes
  if isinstance(values[0], str):
    path = write_csv(tmp_path / "a.csv", values)
    assert labels_of(read_contents({"train": path})) == [["2"], ["0"], []]
  # If labels have no names, their indices are their names, and a note says so.
  contents = read_contents({"train": path})
  assert labels_of(contents) == [["2"], ["0"], []]
  assert contents.task.labels == ("0", "1", "2")
  assert contents.notes == [
    "each list of labels has a number for each of 3 labels; name them by"
    " --labels."
  ]


@pytest.mark.parametrize(
  "values, expected",
  [
    (
      ["['joy']", "[]", "['joy', \"at last\"]"],
      [["joy"], [], ["joy", "at last"]],
    ),
    (['["радость"]', "", "{'страх'}"], [["радость"], [], ["страх"]]),
    (["joy", '"hope, at last", joy'], [["joy"], ["hope, at last", "joy"]]),
    # Here each number names a label, because the lists have unequal lengths.
    (["[0]", "[0, 1]", "[1]"], [["0"], ["0", "1"], ["1"]]),
    (["(none)", "joy"], [["(none)"], ["joy"]]),
  ],
)
def test_lists_in_a_table_read_as_in_json(tmp_path, values, expected):
  path = write_csv(tmp_path / "a.csv", values)
  assert labels_of(read_contents({"train": path})) == expected
  path = write_lists(tmp_path / "a.jsonl", expected)
  assert labels_of(read_contents({"train": path})) == expected


@pytest.mark.parametrize(
  "values, labels, message",
  [
    (["[joy", "b"], (), r"a\.csv:2: labels is '\[joy', which begins as a list"),
    (["b", "[0 0 1]"], (), r"a\.csv:3: labels is '\[0 0 1\]', which begins as"),
    (["joy, hope, joy"], (), r"a\.csv:2: label 'joy' is repeated"),
    (["['joy', 'joy']"], (), r"a\.csv:2: label 'joy' is repeated"),
    (["[1, 0, 0]", "[1, 0]"], (), r"a\.csv:2: the list \[1, 0, 0\] of 0 and 1"),
    (
      ["[0, 1]"],
      ("a", "b", "c"),
      r"a\.csv:2 has 2 numbers for 3 labels \(a, b, c",
    ),
    (
      ["[0, 2, 1]"],
      ("a", "b", "c"),
      r"a\.csv:2: label '0' is not one of a, b, c",
    ),
    (["['']", "a"], (), r"a\.csv:2: label '' is neither a name nor a number"),
  ],
)
def test_ambiguous_lists_are_refused(tmp_path, values, labels, message):
  path = write_csv(tmp_path / "a.csv", values)
  with pytest.raises(ValueError, match=message):
    read_contents({"train": path}, labels=labels)


@pytest.mark.parametrize(
  "values, expected_labels, warning",
  [
    (["joy|hope", "joy"], ["joy", "joy|hope"], "'joy|hope' with |, ;"),
    (
      ["joy; hope", "fear, a|b", "a|c"],
      ["a|b", "a|c", "fear", "joy; hope"],
      "'a|b' and 2 more with |, ;",
    ),
    (["2 5 17", "3"], ["2 5 17", "3"], "'2 5 17' with |, ;"),
    ([[1], [0], [1]], ["0", "1"], "only 0 or 1, which is read as the name"),
    (["1", "0", ""], ["0", "1"], "only 0 or 1, which is read as the name"),
    (["0 1 0x", "x"], ["0 1 0x", "x"], None),
    (["[2]", "[1]"], ["1", "2"], None),
    # A text in quotes is always one name.
    (['"0 1"', "x"], ["0 1", "x"], "'0 1' with |, ;"),
  ],
)
def test_names_that_may_be_several_labels_give_a_warning(
  tmp_path, values, expected_labels, warning
):
  if isinstance(values[0], str):
    path = write_csv(tmp_path / "a.csv", values)
  else:
    path = write_lists(tmp_path / "a.jsonl", values)
  contents = read_contents({"train": path})
  assert sorted(contents.task.labels) == expected_labels
  assert len(contents.notes) == (warning is not None)
  if warning:
    assert (
      contents.notes[0].startswith("warning: ") and warning in contents.notes[0]
    )
  # There is no warning if the user has named the labels.
  assert not read_contents({"train": path}, labels=expected_labels).notes


def test_a_list_is_refused_as_a_single_label(tmp_path):
  path = write_csv(tmp_path / "a.csv", ["joy", "['joy', 'hope']"])
  with pytest.raises(
    ValueError, match=r"a\.csv:3: label .* is a list; several"
  ):
    read_contents({"train": path}, kind="classification")
  path = write_csv(tmp_path / "a.csv", ["[x]", "(a) b", ""][:2])
  assert labels_of(read_contents({"train": path}, kind="classification")) == [
    "[x]",
    "(a) b",
  ]


LABEL_COLUMNS = "text=text,label=toxic,label=an insult"


def test_a_column_for_each_label_is_read(tmp_path):
  table = "text,toxic,an insult\na,0,1\nb,1,1\nc,0.0,0\nd,True,False\n"
  table += "e,TRUE,FALSE\nf,false,TRUE\n"
  path = files.write_text(tmp_path / "a.csv", table)
  lines = [{"text": "a", "toxic": 0, "an insult": True}, {"text": "b"}]
  lines.append({"text": "c", "toxic": -1, "an insult": -1})
  test_path = files.write_jsonl(tmp_path / "b.jsonl", lines)
  contents = read_contents(
    {"train": path, "test": test_path}, columns=LABEL_COLUMNS
  )
  both_labels = ["toxic", "an insult"]
  expected = [
    ["an insult"],
    both_labels,
    [],
    ["toxic"],
    ["toxic"],
    ["an insult"],
  ]
  assert labels_of(contents) == expected
  assert labels_of(contents, "test") == [["an insult"], None, None]
  assert contents.task.labels == ("toxic", "an insult")
  # The flag --labels decides the order of the labels.
  contents = read_contents(
    {"train": path}, columns=LABEL_COLUMNS, labels=both_labels[::-1]
  )
  assert contents.task.labels == ("an insult", "toxic")
  for content, message in (
    (
      "text,toxic,an insult\na,0,2\n",
      r"a\.csv:2: an insult is '2', not 0 or 1",
    ),
    ("text,toxic,an insult\na,0,\n", r"a\.csv:2: an insult is '', not 0 or 1"),
    (
      "text,toxic\na,0\n",
      r"a\.csv:2 has no column 'an insult'; the columns are text",
    ),
  ):
    path = files.write_text(tmp_path / "a.csv", content)
    with pytest.raises(ValueError, match=message):
      read_contents({"train": path}, columns=LABEL_COLUMNS)
  with pytest.raises(
    ValueError, match="--labels: each label has a column of i"
  ):
    task_inputs.find_task(
      "mine", kind="multi_label", columns=LABEL_COLUMNS, labels=["x", "y"]
    )
  with pytest.raises(ValueError, match="is there twice"):
    task_inputs.find_task(
      "mine", kind="multi_label", columns=LABEL_COLUMNS + ",label=toxic"
    )


# True and predicted entities (begin, end, type) of a sentence of eight words.
TRUE_ENTITIES = [(0, 1, "X"), (1, 3, "X"), (4, 7, "Y")]
PREDICTED_ENTITIES = [(0, 1, "X"), (1, 3, "Y"), (4, 7, "Y"), (7, 8, "X")]
# Scheme -> the letters of an entity's first word, of an inner word, of its last
# word, and of an entity of one word.
SCHEME_LETTERS = {
  "IOB2": "BIIB",
  "IOBES": "BIES",
  "BILOU": "BILU",
  "BMES": "BMES",
  "BMEWO": "BMEW",
}


def tags_of(entities, letters, has_type=True):
  first_letter, inner_letter, last_letter, only_letter = letters
  word_tags = ["O"] * 8
  for first, stop, entity_type in entities:
    span_tags = [
      first_letter,
      *[inner_letter] * (stop - first - 2),
      last_letter,
    ]
    word_tags[first:stop] = span_tags if stop - first > 1 else [only_letter]
    for i in range(first, stop):
      word_tags[i] += f"-{entity_type}" if has_type else ""
  return word_tags


@pytest.mark.parametrize("scheme", SCHEME_LETTERS)
def test_entities_are_the_same_in_every_scheme(tmp_path, scheme):
  lines = [
    dict(words=["a"] * 8, tags=tags_of(entities, SCHEME_LETTERS[scheme]))
    for entities in (TRUE_ENTITIES, PREDICTED_ENTITIES)
  ]
  path = files.write_jsonl(tmp_path / "a.jsonl", lines)
  task = read_contents({"train": path}, kind="tagging", columns=None).task
  letters = sorted({*SCHEME_LETTERS[scheme]})
  assert sorted(task.labels) == sorted(
    [
      "O",
      *(
        f"{letter}-{entity_type}" for entity_type in "XY" for letter in letters
      ),
    ]
  )
  assert task.metrics == ("tagging_f1",)
  task = task._replace(metrics=("tagging_f1", "tagging_f1_strict"))
  scores = metrics.evaluate(task, [lines[1]["tags"]], [lines[0]])
  num_shared = len({*TRUE_ENTITIES} & {*PREDICTED_ENTITIES})
  assert num_shared == 2
  for suffix in ("", "_strict"):
    assert scores["precision" + suffix] == pytest.approx(
      num_shared / len(PREDICTED_ENTITIES)
    )
    assert scores["recall" + suffix] == pytest.approx(
      num_shared / len(TRUE_ENTITIES)
    )
    assert scores["tagging_f1" + suffix] == pytest.approx(4 / 7)


def test_tags_may_lack_the_type_of_their_entities(tmp_path):
  gold_tags = tags_of(
    [(0, 2, ""), (4, 5, "")], SCHEME_LETTERS["IOB2"], has_type=False
  )
  predicted = tags_of(
    [(0, 2, ""), (6, 7, "")], SCHEME_LETTERS["IOB2"], has_type=False
  )
  lines = [dict(words=["a"] * 8, tags=gold_tags)]
  path = files.write_jsonl(tmp_path / "a.jsonl", lines)
  task = read_contents({"train": path}, kind="tagging", columns=None).task
  assert (task.labels, task.metrics) == (("O", "B", "I"), ("tagging_f1",))
  assert metrics.evaluate(task, [predicted], lines)["tagging_f1"] == 0.5


def test_iob1_is_scored_by_its_entities(tmp_path):
  """Scores tags of IOB1, where B- stands only between entities of one type.

  The predicted tags of IOB2 have the same entities, so their F1 must be 1.
  """
  iob1_tags = ["I-X", "B-X", "I-X", "O", "I-Y", "I-Y", "I-Y", "I-X"]
  lines = [dict(words=["a"] * 8, tags=iob1_tags)]
  path = files.write_jsonl(tmp_path / "a.jsonl", lines)
  task = read_contents({"train": path}, kind="tagging", columns=None).task
  assert task.metrics == ("tagging_f1",)
  predicted = tags_of([*TRUE_ENTITIES, (7, 8, "X")], SCHEME_LETTERS["IOB2"])
  assert metrics.evaluate(task, [predicted], lines)["tagging_f1"] == 1.0


@pytest.mark.parametrize(
  "tag_names, metric",
  [
    (["NOUN", "VERB"], "accuracy"),
    (["существительное", "глагол"], "accuracy"),
    (["O", "X"], "accuracy"),
    ([3, 0], "accuracy"),
    (["NN-B", "VB-I"], "accuracy"),
    (["S", "E"], "accuracy"),
    (["S-X", "O"], "tagging_f1"),
  ],
)
def test_tags_without_prefixes_are_scored_word_by_word(
  tmp_path, tag_names, metric
):
  lines = [
    dict(words=["a", "b", "c"], tags=[tag_names[0], tag_names[1], tag_names[0]])
  ]
  path = files.write_jsonl(tmp_path / "a.jsonl", lines)
  contents = read_contents({"train": path}, kind="tagging", columns=None)
  (example,), task = contents.splits["train"], contents.task
  assert example["tags"] == [str(tag) for tag in lines[0]["tags"]]
  assert task.metrics == (metric,)
  if metric == "accuracy":
    assert set(task.labels) == {*example["tags"]}
    predicted = [example["tags"][:1] * 3]
    assert metrics.evaluate(task, predicted, [example])["accuracy"] == 2 / 3
    # No tag is predicted for a word without pieces; the word counts as wrong.
    predicted = [[example["tags"][0], None, None]]
    assert metrics.evaluate(task, predicted, [example])["accuracy"] == 1 / 3
    assert metrics.score_names(task) == ["accuracy", "examples"]
  task_format = task_inputs.find_task(
    "mine", kind="tagging", columns=None, labels=[str(tag) for tag in tag_names]
  )
  assert task_format.task.metrics == (metric,)


@pytest.mark.parametrize(
  "names, warning",
  [
    ("b-per i-per o", "'b-per' and 'i-per'"),
    ("PER-B PER-I O", "'PER-B' and 'PER-I'"),
    ("B_PER I_PER O", "'B_PER' and 'I_PER'"),
    ("BD-X ID-X BH-X O", "'B[DH]-X' and 'ID-X'"),
    ("B-X I-X E-X U-X O", "'B-X' and 'I-X'"),
    ("BPER IPER BLOC O", "'BPER' and 'IPER'"),
    ("begin:a inside:a O", "'begin:a' and 'inside:a'"),
    ("B\u2013X I\u2013X O", "'B\u2013X' and 'I\u2013X'"),
    ("b i o", "'b' and 'i'"),
    ("S_X S_Y o", "'S_X' and 'S_Y'"),
    ("S_X O", "'S_X' look"),
    ("NOUN VERB", None),
    ("O X", None),
    ("O IN NN BE", None),
    ("S E", None),
    ("e s o", None),
    ("IN-X O X", None),
    ("B-X I-X O", None),
    ("B I O", None),
    ("B M E S", None),
  ],
)
def test_entities_in_another_spelling_give_a_warning(tmp_path, names, warning):
  names = names.split()
  lines = [dict(words=["a"] * len(names), tags=names)]
  path = files.write_jsonl(tmp_path / "a.jsonl", lines)
  for labels in ((), names):
    contents = read_contents(
      {"train": path}, kind="tagging", columns=None, labels=labels
    )
    assert len(contents.notes) == (warning is not None)
    if warning:
      assert contents.task.metrics == ("accuracy",)
      assert re.match(f"warning: tags such as {warning}", contents.notes[0])


@pytest.mark.parametrize(
  "unprefixed_tag, message",
  [
    (
      "MISC",
      r"a\.conll:3: tag 'MISC' is not O, B-TYPE or I-TYPE, as other tags",
    ),
    ("B", r"a\.conll:3: tag 'B' is not O, B-TYPE or I-TYPE, as other tags"),
  ],
)
def test_a_mix_of_tags_with_and_without_prefixes_is_refused(
  tmp_path, unprefixed_tag, message
):
  path = files.write_text(
    tmp_path / "a.conll", f"in O\nYork B-LOC\nits {unprefixed_tag}\n"
  )
  with pytest.raises(ValueError, match=message):
    read_contents({"train": path}, kind="tagging", columns=None)
  with pytest.raises(ValueError, match="--labels: tag '.*' is not O, B-TYPE"):
    task_inputs.find_task(
      "mine",
      kind="tagging",
      columns=None,
      labels=["O", "B-LOC", unprefixed_tag],
    )


def test_words_and_tags_as_lists_in_a_table_are_read(tmp_path):
  table_rows = "\"['EU', 'it''s']\",\"['B-ORG', 'O']\"\n"
  table_rows = table_rows.replace("'it''s'", '""it\'s""') + '[ 1 ],"O O O"\n'
  path = files.write_text(tmp_path / "a.csv", "words,tags\n" + table_rows)
  examples = read_contents(
    {"train": path}, kind="tagging", columns="words=words,tags=tags"
  )
  first_example, second_example = examples.splits["train"]
  assert first_example["words"] == ["EU", "it's"] and first_example["tags"] == [
    "B-ORG",
    "O",
  ]
  assert second_example["words"] == ["[", "1", "]"]


def test_a_tagger_without_o_gives_no_tag_to_a_word_without_piece(tmp_path):
  """Tags three words, of which the second has no piece.

  Its tag must be null in JSON, and _ in the file for conlleval.
  """
  head = dict(num_labels=2)
  labels = ["NOUN", "VERB"]
  tiny_tasks.write_model(
    tmp_path / "m", "token_classification", head=head, labels=labels
  )
  predictor = predict.open_predictor(str(tmp_path / "m"))
  example = dict(id=1, words=["cat", "\u0007", "runs"], tags=None)
  (answer,) = predict.predict(predictor, [example])
  assert answer["tags"][1] is answer["probabilities"][1] is None
  assert {answer["tags"][0], answer["tags"][2]} <= {*labels}
  text = server_files.conll_text(
    [answer["tags"]], [example | {"tags": ["NOUN"] * 3}]
  )
  assert text.split("\n")[1] == "\u0007 NOUN _"


def test_a_regression_with_several_outputs_names_each(tmp_path):
  output_names = ["valence", "arousal", "dominance"]
  head = dict(num_labels=3, pooling=heads.Pooling(*bert.POOLING)._asdict())
  for labels in (output_names, None):
    path = tmp_path / str(bool(labels))
    options = dict(head=head, labels=labels, problem="regression")
    tiny_tasks.write_model(path, "sequence_classification", **options)
    predictor = predict.open_predictor(str(path))
    texts = [
      dict(id=i, texts=[text]) for i, text in enumerate(("red cat", "dog"))
    ]
    answers = predict.predict(predictor, texts)
    rows, _ = predict.encode_examples(predictor, texts)
    logits = predict.compute_outputs(predictor, rows, positions=None)
    for answer, values in zip(answers, logits, strict=True):
      names = labels or ["LABEL_0", "LABEL_1", "LABEL_2"]
      assert list(answer) == ["scores"] and list(answer["scores"]) == names
      np.testing.assert_allclose(
        [*answer["scores"].values()], values, rtol=1e-6
      )


def test_the_command_says_how_labels_are_read(tmp_path, capsys):
  path = write_csv(tmp_path / "a.csv", ["[0, 1]", "[1, 0]"])
  flags = ["--task=mine", "--kind=multi_label", f"--columns={COLUMNS}"]
  flags += [
    f"--input=train={path}",
    f"--vocab={files.write_wordpiece(tmp_path)}",
  ]
  flags += [f"--output={tmp_path / 'out'}", "--length=16"]
  execute(["prepare-task", *flags])
  printed = capsys.readouterr()
  assert "labels ['0', '1'], metric f1_micro\n" in printed.out
  assert "next: bert_jax train --config own" in (printed.out)
  assert "labels: each list of labels has a number for each of 2" in printed.err
  content = (tmp_path / "out" / "train.examples.jsonl").read_text()
  examples = [json.loads(line) for line in content.splitlines()]
  assert [example["label"] for example in examples] == [["1"], ["0"]]


def test_all_labels_adds_the_missing_tags_of_a_scheme():
  assert tags.all_labels(["B-X", "O"]) == ("O", "B-X", "I-X")
  assert tags.all_labels(["S-b", "B-a"]) == (
    *("O", "B-a", "I-a", "E-a", "S-a"),
    *("B-b", "I-b", "E-b", "S-b"),
  )
  assert tags.all_labels(["VB", "O", "NN"]) == ("O", "NN", "VB")
  assert Task("x", "tagging", labels=(), num_choices=1, metrics=()).labels == ()
