"""Gives the package's examples and tasks to seqio. This room is optional.

This room needs the packages seqio and tensorflow. No file of the package
imports this room. A user's module imports it to register tasks, and then
`examples.loader` opens the tasks by name.

Read first: `pretraining.py`.

* `pretraining.py`: registers prepared folders and plain text as seqio tasks.
* `downstream.py`: registers downstream tasks as seqio tasks.
* `text_vocabulary.py`: presents tokenizers as a `seqio.Vocabulary`.
"""
