//! Placeholder to be filled.
