"""`python -m bert_jax VERB` is the command `bert_jax VERB`."""

from bert_jax.cli.main import main

main()
