//! The `slackline` command line.

#[allow(dead_code)]
mod configuration;

fn main() {}
