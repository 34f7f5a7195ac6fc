//! The worker of the published crate, with the work of the bench: `crate-worker`.
//!
//! Where the server is, how many slots there are and where starts of probes are noted down stands
//! in the environment, as for the other peers.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use cronoq_server::worker::{WorkerOptions, run_worker};
use tokio::signal::unix::{SignalKind, signal};

/// Nanoseconds of the clock that the client's stamps are from; it counts since the machine began.
fn now() -> u128 {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to the place that it is given, and to nothing else.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut at) };
    at.tv_sec as u128 * 1_000_000_000 + at.tv_nsec as u128
}

fn work(payload: &[u8], mut notes: &File) -> anyhow::Result<Bytes> {
    if payload.first() == Some(&b'P') {
        let made: u128 = std::str::from_utf8(&payload[1..20])?.parse()?;
        notes.write_all(format!("{:019}\n", now() - made).as_bytes())?;
    }
    Ok(Bytes::copy_from_slice(&payload[..8]))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let endpoint = format!("http://{}", env::var("PEER_URL")?);
    let slots = env::var("PEER_SLOTS")?.parse()?;
    let path = env::var("PEER_PROBES")?;
    let notes = Arc::new(OpenOptions::new().create(true).append(true).open(path)?);
    let mut ended = signal(SignalKind::terminate())?;
    let handler = move |lease: cronoq_server::worker::Lease| {
        let notes = notes.clone();
        async move { work(&lease.payload, &notes).map_err(Into::into) }
    };
    let options = WorkerOptions::new(endpoint, "default").slots(slots);
    run_worker(options, handler, async move { ended.recv().await; }).await
}
