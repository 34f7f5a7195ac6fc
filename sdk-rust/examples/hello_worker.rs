//! A worker with all kinds of handlers. It runs until SIGTERM or Ctrl-C, then drains.
//!
//! Run it with `cargo run --example hello_worker -- 127.0.0.1:7070`; a second word
//! is the pool.

use std::collections::BTreeMap;
use std::time::Duration;

use cronoq::{Attempt, HandlerError, Worker, WorkerOptions};
use serde::Deserialize;

#[derive(Deserialize)]
struct Order {
    item: String,
    count: u32,
}

/// Any error converts with `?` and is retried; `HandlerError` says more.
async fn bake(attempt: Attempt, order: Order) -> Result<String, HandlerError> {
    if order.count == 0 {
        return Err(HandlerError::permanent("nothing to bake"));
    }
    for done in 0..order.count {
        // Ends the handler when its task is cancelled or the worker stops.
        attempt.until_cancelled(tokio::time::sleep(Duration::from_millis(10))).await?;
        attempt.progress("baking", f64::from(done + 1) / f64::from(order.count))?;
    }
    Ok(format!("{} × {}", order.count, order.item))
}

/// Code that blocks gets a thread of its own.
#[expect(clippy::needless_pass_by_value, reason = "handlers are given values of their own")]
fn count_letters(_attempt: Attempt, text: String) -> Result<BTreeMap<char, usize>, HandlerError> {
    if text.is_empty() {
        return Err(HandlerError::permanent("nothing to count"));
    }
    let mut letters = BTreeMap::new();
    text.chars().for_each(|letter| *letters.entry(letter).or_default() += 1);
    Ok(letters)
}

/// Bytes come and go as they are.
async fn reverse(_attempt: Attempt, mut bytes: Vec<u8>) -> Result<Vec<u8>, HandlerError> {
    bytes.reverse();
    Ok(bytes)
}

#[tokio::main]
async fn main() -> cronoq::Result<()> {
    tracing_subscriber::fmt::init();
    let endpoint = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7070".to_owned());
    let pool = std::env::args().nth(2).unwrap_or_else(|| "default".to_owned());
    let mut worker = Worker::new(WorkerOptions { endpoint, pool, slots: 8, ..Default::default() })?;
    worker
        .handler("bake", bake)?
        .handler_blocking("count_letters", count_letters)?
        .handler("reverse", reverse)?;
    worker.run_forever().await
}
