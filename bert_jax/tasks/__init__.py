"""Downstream tasks: from files to rows, from logits to metrics.

This room imports numpy, the package's single files, `text` and `examples`. None
of its files imports jax. A metric's package is imported when the metric is
computed.

Start with `encoded_rows.py`: it defines a task, its examples and its rows. The
list below follows the way of an example from its file to a metric:

  published.py: the labels, metrics and files of published tasks
  files/: the readers of the files' formats
  task_inputs.py: reads SPLIT=FILE to examples, for published and custom tasks
  layouts.py: the special tokens around the texts of a row, by family; texts
    as a padded batch
  encode.py: encodes texts as rows: classification, regression, choice
  tagging.py: encodes words with tags as rows
  questions.py: encodes questions and contexts as rows
  windows.py: windows over texts that are longer than a row
  prepare_task.py: makes a task folder from files, with the modules above
  encoded_rows.py: the task, its rows, and the task folder
  bucket_lengths.py: the lengths to which rows are padded
  batches.py: the training batches of a task folder, and its splits to evaluate
  predictions.py: turns logits of rows into predictions of examples
  metrics.py: official metrics by name
  squad_metrics.py: compares answers like SQuAD's and ReCoRD's scripts
  server_files.py: writes predictions for official scripts and servers
"""
