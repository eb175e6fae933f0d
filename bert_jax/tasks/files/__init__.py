"""The files in which tasks are published, as records and examples.

A format has two functions: `records` reads the lines of a file, each with the
place where it stands, and `parse` makes an example of a record.

  tables.py: the one reader of TSV, CSV and JSON lines; start here
  label_fields.py: labels in the forms that people write them in
  tags.py: schemes of tags of words
  glue.py: GLUE, and the sets it was made from
  superglue.py: SuperGLUE
  squad.py: SQuAD 1.1 and 2.0
  choices.py: SWAG and RACE
  conll.py: words with tags, a word a line
  custom.py: columns of a user's own file
  tfds.py: data sets of TensorFlow Datasets in place of files
  requests.py: lines of JSON without labels, to predict
"""
