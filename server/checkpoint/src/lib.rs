//! Checkpoints: their format and the place they are kept in. Nothing here knows a server, a session or a clock table.
//!
//! # On disk
//!
//! ```text
//! FOLDER/0000000042/shard-00000.safetensors    one part for each shard: arrays of values, and the shard's facts
//! FOLDER/0000000042/shard-00001.safetensors
//! FOLDER/0000000042/manifest.json              written last: the checkpoint exists from this moment
//! ```
//!
//! The parts are written by whoever holds the shards ([`Store::write_part`]), in any order and from several processes; each answers with a
//! [`PartEntry`]. One process collects the entries in a [`Manifest`] and commits it ([`Store::commit`]). Numbers are committed in
//! rising order, and nobody writes a part of a number that was passed: [`Store::next_number`] gives the first one free.
//!
//! Every file is whole or not there (written under another name, synced, renamed, its folder synced; on an object store by its own rule). A
//! crash at any moment leaves the checkpoint before it as it was. The last few are kept: of an older one the manifest goes first, then the
//! parts that no kept manifest names.
//!
//! # What is checked
//!
//! A part carries checksums for every 4 MiB piece of it in the manifest, and the manifest one of itself. Every file carries the run's
//! [`Stamp`], so that a file of another run is called that, and not damaged. Nothing is skipped: when the newest checkpoint is damaged this
//! is an error, which names an older one that is whole. See [`CheckpointError`] and [`Damage`].
//!
//! # Memory
//!
//! Writing streams the arrays where they lie: beside them it needs the facts, 8 bytes for each chosen block of a partial part, and 1 MiB
//! (local) or about five pieces of 8 MiB (object store). Loading needs the arrays asked for, and three pieces of 4 MiB.
//!
//! # Less than everything
//!
//! A part may hold chosen blocks of keys only: those that moved furthest ([`priority`], after SCAR) or those that changed
//! ([`Kind::Incremental`]). The manifest then names the files of earlier checkpoints beneath it ([`Manifest::bases_after`]), and loading
//! takes each block from the newest file that holds it. Files that a kept manifest names are kept, whatever their number.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod blocks;
mod cover;
mod disk;
mod error;
#[cfg(test)]
mod faults;
mod hash;
mod hex;
mod load;
mod manifest;
mod part;
mod pieces;
mod place;
pub mod priority;
mod remote;
mod saved;
mod store;

pub use blocks::Blocks;
pub use error::{CheckpointError, Damage};
pub use hash::StateHash;
pub use load::{Loaded, Origin, Source};
pub use manifest::{Expect, FORMAT, Kind, Manifest, PartEntry, RunId, Stamp, parse_manifest};
pub use part::{Array, ArrayPlace, ParsedPart, Part, PartHeader, Span, parse_part};
pub use pieces::PIECE;
pub use saved::Saved;
pub use store::{Committed, Store};
