//! The `slackline` command line.
fn main() {}
