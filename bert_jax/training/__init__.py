"""Training: a run from its config to its last checkpoint.

This room may import every room before it (see docs/start.md), and the packages
etils, jax, flax, jaxtyping, ml_collections, optax and numpy. Functions import
matplotlib and tensorboardX.

Read `train.py` and `loop.py` first, and `setup.py`, which builds what the loop
needs.

* `train.py`: a run from its start, or its newest checkpoint, to its end.
* `loop.py`: the loop of a phase: steps, rows, evaluations, checkpoints.
* `setup.py`: builds everything that a run needs before its first step.
* `inputs.py`: opens the text or the task that a run trains on.
* `parts.py`: the objects that a run consists of.
* `config.py`: the keys of a config, and the checks of their values.
* `config_files.py`: config files: found by name, opened, printed flat.
* `phases.py`: the phases of a run: lengths, batches, steps.
* `memory.py`: whether a run recomputes activations, by the size of a device.
* `steps.py`: the train step and the evaluation step.
* `state.py`: the train state: step, parameters, optimizer, carry.
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
* `suggestions.py`: changes of the config with which a step fits.
* `compile_report.py`: a report on each phase, for `bert_jax compile`.
"""
