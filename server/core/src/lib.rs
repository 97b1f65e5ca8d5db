//! The pure server: shards, membership, work assignment, counted-once pushes, the record of a run.
