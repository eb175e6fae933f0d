"""Uses of a trained model, as functions for notebooks and for the commands.

This room imports `devices`, `text`, `models`, `weights`, `corpus`, `tasks`,
`training` and the package's root. It also imports jax, flax, optax, etils,
tokenizers, ml_collections and numpy. It imports h5py, matplotlib and tqdm only
inside functions.

Start with `model.py`, whose methods only call the other files, and with
`fill_mask.py`, which is short. `weights.load.open_model` opens the model
that the functions take.

* `model.py`: `bert_jax.load`, and the model for users that it returns.
* `finetune.py`: `bert_jax.finetune`, from a table of a user to a model.
* `pretrain.py`: `bert_jax.pretrain`, from a user's text to a model.
* `labelled.py`: reads tables of labelled examples.
* `trained.py`: runs a training, with its config, folder, progress and result.
* `report.py`: `bert_jax.report`, which compares runs.
* `results.py`: turns users' inputs into lists, and shows results in notebooks.
* `fill_mask.py`: fills the masks in texts.
* `predict.py`: predicts with a fine-tuned model, as JSON objects.
* `serve.py`: predicts for lines as they arrive.
* `evaluate.py`: scores a model on a split of a task.
* `export.py`: writes a fine-tuned model and its compiled program to one file.
* `features.py`: computes vectors of texts with a frozen encoder.
* `feature_files.py`: writes vectors of texts to a file: JSONL, npz, HDF5.
* `text_inputs.py`: reads texts and encodes them.
* `row_batches.py`: batches encoded rows of similar lengths.
* `attention.py`: computes the attention weights of a model's heads.
* `likelihood.py`: computes how probable texts are, and fills blanks.
* `likelihood_tests.py`, `blimp.py`: test a model by likelihoods.
* `augmentation.py`, `augment_task.py`: make more examples for a task, as
  TinyBERT does.
* `word_vectors.py`: reads vectors in GloVe's format, finds the nearest words.
* `bilstm_tagger.py`: BERT's experiment with a tagger on frozen features.
"""
