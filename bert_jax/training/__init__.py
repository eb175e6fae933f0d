"""Training: a run from its config to its last checkpoint.

Imports every room that stands before it: `devices`, `text`, `models`,
`objectives`, `weights`, `corpus`, `examples`, `tasks` and the package's root;
of packages jax, flax, optax and numpy (matplotlib, tensorboardX in functions).

Start with `train.py` and `loop.py`, and `setup.py`, which builds what the loop
needs.

* `train.py`: a run from its start, or its newest checkpoint, to its end.
* `loop.py`: the loop of a phase: steps, rows, evaluations, checkpoints.
* `setup.py`: builds a run's data, objective, optimizer and shapes.
* `parts.py`: these parts as one object, which the loop reads.
* `config.py`: the keys of a config, and the checks of their values.
* `config_files.py`: config files: found by name, opened, printed flat.
* `phases.py`: the phases of a run: lengths, batches, steps.
* `steps.py`: the train step and the evaluation step.
* `state.py`: the train state: parameters, optimizer, random key.
* `optim.py`: optimizers and schedules.
* `snapshot.py`: the arrays that a checkpoint holds of a state.
* `start_from.py`: the model that a run starts from, `init_from`.
* `teacher.py`: the model that a run learns from.
* `workdir.py`: a run's folder: its lock, its config, its tokenizer.
* `logging.py`: what a run writes for people, and the sums that it logs.
* `evaluate.py`, `evaluate_task.py`: held-out text, and a task's splits.
* `sweep.py`: runs seeds and grids of a config.
* `topologies.py`: asks a TPU's compiler whether a step fits, without a TPU.
* `suggestions.py`: what would make a step fit.
* `compile_report.py`: compiles every phase for a slice, `bert_jax compile`.
"""
