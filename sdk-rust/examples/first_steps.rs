//! What docs/getting-started.md shows: a worker and a client in one program.
//!
//! Run it with `cargo run --example first_steps -- 127.0.0.1:7070`.

use std::time::Duration;

use cronoq::{
    Attempt, Client, ClientOptions, HandlerError, RetryPolicy, TaskSpec, Worker, WorkerOptions,
};
use serde::{Deserialize, Serialize};

// docs: payload
#[derive(Serialize, Deserialize)]
struct Order {
    customer: String,
    cents: u32,
}

async fn invoice(_attempt: Attempt, order: Order) -> Result<String, HandlerError> {
    Ok(format!("{} owes {:.2}", order.customer, f64::from(order.cents) / 100.0))
}
// docs: end

// docs: retry
async fn flaky(attempt: Attempt, _nothing: ()) -> Result<u32, HandlerError> {
    if attempt.number() < 3 {
        return Err(HandlerError::retry_after(Duration::from_millis(50), "not yet"));
    }
    Ok(attempt.number())
}
// docs: end

// docs: deps
async fn square(_attempt: Attempt, number: u64) -> Result<u64, HandlerError> {
    Ok(number * number)
}

async fn sum(attempt: Attempt, _nothing: ()) -> Result<u64, HandlerError> {
    let mut total = 0;
    for parent in attempt.parents() {
        total += attempt.output::<u64>(*parent).await?;
    }
    Ok(total)
}
// docs: end

#[tokio::main]
async fn main() -> cronoq::Result<()> {
    let endpoint = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7070".to_owned());
    // docs: worker
    let options = WorkerOptions { endpoint: endpoint.clone(), slots: 8, ..Default::default() };
    let mut worker = Worker::new(options)?;
    worker
        .handler("invoice", invoice)?
        .handler("flaky", flaky)?
        .handler("square", square)?
        .handler("sum", sum)?;
    worker.start()?; // or worker.run_forever().await, until SIGTERM or Ctrl-C
    // docs: end
    // docs: client
    let client = Client::new(ClientOptions { endpoint, ..Default::default() })?;
    // docs: end

    // docs: payload
    let order = Order { customer: "Ada".to_owned(), cents: 1250 };
    let task = client.submit(TaskSpec::new("invoice", order)).await?;
    println!("{}", task.result::<String>().await?); // Ada owes 12.50
    // docs: end

    // docs: retry
    let retry = RetryPolicy { max_attempts: 5, ..Default::default() };
    let task = client.submit(TaskSpec { retry: Some(retry), ..TaskSpec::of("flaky") }).await?;
    println!("succeeded in attempt {}", task.result::<u32>().await?); // 3
    // docs: end

    // docs: key
    let mail = || TaskSpec {
        delay: Some(Duration::from_secs(3600)),
        ..TaskSpec::new("mail", "hi").key("mail-42")
    };
    let first = client.submit(mail()).await?;
    let again = client.submit(mail()).await?;
    println!("{} {}", again.id() == first.id(), again.duplicate()); // true true
    first.cancel().await?;
    // docs: end

    // docs: deps
    let squares = (1..=4).map(|n| TaskSpec::new("square", n).key(format!("square-{n}")));
    let last = TaskSpec {
        deps: (1..=4).map(|n| format!("square-{n}").into()).collect(),
        ..TaskSpec::of("sum").key("sum-1-4")
    };
    let tasks = client.submit_batch(squares.chain([last])).await?;
    if let Some(last) = tasks.last() {
        println!("{}", last.result::<u64>().await?); // 30
    }
    // docs: end

    worker.stop().await;
    client.close();
    Ok(())
}
