"""Training: a run from its config to its last checkpoint.

This room may import every room before it (see docs/start.md), and the packages
etils, jax, flax, jaxtyping, ml_collections, optax and numpy. It imports
matplotlib and tensorboardX only inside functions.

Read `train.py` and `loop.py` first, and `setup.py`, which builds what the loop
needs.

* `train.py`: a run from its start, or its newest checkpoint, to its end.
* `loop.py`: the steps of a phase, with logs, evaluations and checkpoints.
* `setup.py`: builds everything that a run needs before its first step.
* `inputs.py`: opens the text or the task that a run trains on.
* `parts.py`: the objects that a run consists of.
* `config.py`: the keys of a config, and the checks of their values.
* `config_files.py`: finds config files by name, opens and prints them.
* `phases.py`: the phases of a run: lengths, batches, steps.
* `memory.py`: decides whether activations are recomputed to save memory.
* `steps.py`: the train step and the evaluation step.
* `state.py`: the train state, which has the parameters and the moments.
* `optim.py`: optimizers and learning rate schedules.
* `snapshot.py`: copies a state for a checkpoint, with checksums.
* `start_from.py`: the model that a run starts from, `init_from`.
* `teacher.py`: the model that a run learns from.
* `workdir.py`: a run's folder: its lock, its config, its tokenizer.
* `logging.py`: what a run reports, and the sums of its steps' metrics.
* `evaluate.py`: evaluation on held-out text.
* `evaluate_task.py`: evaluation on the splits of a task.
* `sweep.py`: runs of a config over a grid of values and several seeds.
* `topologies.py`: compiles a train step for a TPU slice, without a TPU.
* `suggestions.py`: changes of the config with which a step fits into memory.
* `compile_report.py`: a report on each phase, for `bert_jax compile`.
"""
