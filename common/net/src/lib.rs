//! QUIC for Slackline: keys, endpoints, control frames and bulk transfers; the only crate that names quinn.
