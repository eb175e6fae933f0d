"""The command `bert_jax VERB`: a file for each verb.

Each verb's module has these names:

* `HELP`: a sentence that says what the verb does.
* `EXAMPLE`: a command line.
* `add_flags(parser)`: adds the verb's flags to its parser.
* `run(args)`: calls a function of the package. It returns the exit status, or
  None for success.

Optional names, False if they are missing:

* `TAKES_CONFIG`: True if the verb takes --config.KEY=VALUE.
* `TAKES_STDOUT`: True if `--output -` means standard output.
* `CONTINUES`: True if a command that was stopped continues its work when the
  user gives it again.

`VERBOSITY` is optional, too: the lowest level of the messages of absl's logging
that are printed. If it is missing, ERROR is used.

`main.py` has the table of verbs, `flags.py` the flags that verbs share,
`configs.py` reads --config, and `errors.py` turns errors into sentences.
"""
