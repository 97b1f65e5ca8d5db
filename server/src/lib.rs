//! The server daemon: sessions, shard threads, metrics and summary files.
