//! Rust SDK of cronoq, a durable task queue.
//!
//! The crate holds the wire contract so far: [`proto`].

/// The wire contract: messages, clients and servers of `cronoq.v1`. Generated; needs no protoc.
#[allow(clippy::all, clippy::pedantic)]
pub mod proto {
    include!("gen/cronoq.v1.rs");
}
