//! Comparisons: contestants under conditions, each with its own tuned rate from an equal budget, and a plain sentence about who wins.
//!
//! Read in this order: `file` (what a comparison file says; a sweep over contestants and conditions), `expected` (what it
//! expects), `plan` (laid over its base and checked), `figures` (what is compared of a run), `execute` (made), `peers` and `work` (rows
//! of other programs), `standing` (how it came out), `sentence` (who wins), `page` and `table` (drawn and told).

mod execute;
mod expected;
mod figures;
mod file;
mod page;
mod peers;
mod plan;
mod sentence;
mod standing;
mod table;
mod work;

pub use execute::compare;
pub use peers::{Host, Invited, Lines, PeersError};
pub use plan::{Comparison, Links, Ways};
pub use standing::{Budget, Entry, Evaluated, Family, Middle, Row, Standing, Try};
pub use table::told;
pub use work::{Work, find_script};

pub(crate) use page::draw_again;
