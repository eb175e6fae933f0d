"""Reads the files in which tasks are published.

Most formats have two functions. `records` reads the records of a file, and
`parse` makes an example from a record. A record holds, for example, one line or
one question of the file, and its location for messages.

  tables.py: the one reader of TSV, CSV and JSON lines; start here
  label_fields.py: labels in the forms in which people write them
  tags.py: schemes of tags of words
  glue.py: GLUE, and the data sets that it was made from
  superglue.py: SuperGLUE
  squad.py: SQuAD 1.1 and 2.0
  choices.py: SWAG and RACE
  conll.py: words with tags, one word on each line
  custom.py: the columns of a custom task's file
  tfds.py: data sets of TensorFlow Datasets in place of files
  requests.py: JSON lines without labels, for predictions
"""
