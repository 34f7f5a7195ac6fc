//! Measures how many tasks a second one worker of 64 slots runs whose handler does nothing.
//!
//! Run it with `cargo run --release --example throughput -- 127.0.0.1:7070 50000`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use cronoq::{Attempt, Client, ClientOptions, HandlerError, TaskSpec, Worker, WorkerOptions};
use tokio::sync::Notify;

#[tokio::main]
async fn main() -> cronoq::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let endpoint = arguments.next().unwrap_or_else(|| "127.0.0.1:7070".to_owned());
    let count: u32 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(50_000);

    let client = Client::new(ClientOptions { endpoint: endpoint.clone(), ..Default::default() })?;
    let began = Instant::now();
    let tasks = (0..count).map(|_| TaskSpec::new("nothing", vec![0u8; 200]));
    for outcome in client.submit_many(tasks).await {
        outcome?;
    }
    report("submitted", count, began);

    let (left, all_done) = (Arc::new(AtomicU32::new(count)), Arc::new(Notify::new()));
    let mut worker = Worker::new(WorkerOptions { endpoint, slots: 64, ..Default::default() })?;
    let (open, done) = (Arc::clone(&left), Arc::clone(&all_done));
    worker.handler("nothing", move |_attempt: Attempt, payload: Vec<u8>| {
        let (open, done) = (Arc::clone(&open), Arc::clone(&done));
        async move {
            if open.fetch_sub(1, Ordering::Relaxed) == 1 {
                done.notify_one();
            }
            Ok::<_, HandlerError>(payload)
        }
    })?;
    let began = Instant::now();
    worker.start()?;
    all_done.notified().await;
    // A stop returns when the last report has its receipt.
    worker.stop().await;
    report("run and confirmed", count, began);
    client.close();
    Ok(())
}

fn report(what: &str, count: u32, began: Instant) {
    let seconds = began.elapsed().as_secs_f64();
    println!("{what}: {count} tasks in {seconds:.2} s, {:.0} a second", f64::from(count) / seconds);
}
