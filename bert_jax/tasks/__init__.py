"""Downstream tasks: files to encoded rows, logits to predictions and metrics.

This room imports numpy, the root's files, `text` and `examples`; no file of it
imports jax, and packages for metrics are imported when a metric is computed.

Start with `encoded_rows.py`: it says what a task, its examples and its rows
are. The way of an example:

  published.py: the published tasks: labels, metrics, and how files are read
  files/: the readers of the files' formats
  task_inputs.py: SPLIT=FILE to examples, for published and custom tasks
  layouts.py: the special tokens around the texts of a row, by family
  encode.py: texts to rows: classification, regression, choice
  tagging.py: words with tags to rows
  questions.py: questions and contexts to rows
  windows.py: windows over texts that are longer than a row
  prepare_task.py: the above in one: files and a tokenizer to a folder of rows
  encoded_rows.py: the task, its rows, and the folder that holds them
  bucket_lengths.py: the lengths of batches
  batches.py: a folder as a run reads it: batches, splits to score
  predictions.py: logits of rows to predictions of examples
  metrics.py: official metrics by name
  squad_metrics.py: answers compared as SQuAD's and ReCoRD's scripts do
  server_files.py: predictions in the files of official scripts and servers
"""
