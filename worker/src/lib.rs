//! The worker daemon: models, datasets, the training loop.
