"""The stages of `dvc.yaml` beside this folder, and the rounds after them."""
