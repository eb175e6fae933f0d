"""The command `bert_jax VERB`: a file for each verb.

A verb's module holds `HELP`, what it does; `EXAMPLE`, a command line;
`add_flags(parser)`; and `run(args)`, which calls a function of the package and
returns None or the exit status. A verb that takes --config.KEY=VALUE sets
`CONFIG = True`, and one whose `--output -` means stdout sets `STDOUT = True`.

`main.py` has the table of verbs, `flags.py` the flags that verbs share,
`configs.py` reads --config, and `errors.py` turns errors into sentences.
"""
