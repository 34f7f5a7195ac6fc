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
    let mut at = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes to the place that it is given, and to nothing else.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut at) };
    at.tv_sec as u128 * 1_000_000_000 + at.tv_nsec as u128
}

/// The work: nothing, but for a probe's note. It panics on what is not from the bench.
fn work(payload: &[u8], mut notes: &File) -> Bytes {
    if payload.first() == Some(&b'P') {
        let made = std::str::from_utf8(&payload[1..20]).expect("digits");
        let made: u128 = made.parse().expect("an instant");
        notes
            .write_all(format!("{:019}\n", now() - made).as_bytes())
            .expect("a file to write to");
    }
    Bytes::copy_from_slice(&payload[..8])
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let endpoint = format!("http://{}", env::var("PEER_URL")?);
    let slots = env::var("PEER_SLOTS")?.parse()?;
    let path = env::var("PEER_PROBES")?;
    let notes = Arc::new(OpenOptions::new().create(true).append(true).open(path)?);
    let mut ended = signal(SignalKind::terminate())?;
    let options = WorkerOptions::new(endpoint, "default").slots(slots);
    run_worker(
        options,
        move |lease| {
            let notes = notes.clone();
            async move { Ok(work(&lease.payload, &notes)) }
        },
        async move {
            ended.recv().await;
        },
    )
    .await
}
