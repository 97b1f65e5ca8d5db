//! The pure worker: the pull-compute-push cycle as a state machine.
