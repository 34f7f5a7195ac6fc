//! Tasks that depend on each other, and a schedule: worker and client in one program.
//!
//! Run it with `cargo run --example pipeline -- 127.0.0.1:7070`.

use cronoq::{
    Attempt, Client, ClientOptions, HandlerError, ScheduleSpec, TaskSpec, Worker, WorkerOptions,
};

async fn square(_attempt: Attempt, number: u64) -> Result<u64, HandlerError> {
    Ok(number * number)
}

/// Reads what its parents returned.
async fn total(attempt: Attempt, _nothing: ()) -> Result<u64, HandlerError> {
    let mut sum = 0;
    for parent in attempt.parents() {
        sum += attempt.output::<u64>(*parent).await?;
    }
    Ok(sum)
}

#[tokio::main]
async fn main() -> cronoq::Result<()> {
    let endpoint = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7070".to_owned());
    let options = WorkerOptions { endpoint: endpoint.clone(), slots: 4, ..Default::default() };
    let mut worker = Worker::new(options)?;
    worker.handler("square", square)?.handler("total", total)?;
    worker.start()?;

    let client = Client::new(ClientOptions { endpoint, ..Default::default() })?;
    // All or none; members name each other by key.
    let squares = (1..=4).map(|number| TaskSpec::new("square", number).key(format!("s{number}")));
    let sum = TaskSpec {
        deps: (1..=4).map(|number| format!("s{number}").into()).collect(),
        ..TaskSpec::of("total")
    };
    let tasks = client.submit_batch(squares.chain([sum])).await?;
    if let Some(last) = tasks.last() {
        println!("sum of squares: {}", last.result::<u64>().await?);
    }

    let nightly = ScheduleSpec {
        name: "nightly".to_owned(),
        cron: "30 2 * * *".to_owned(),
        tz: "Europe/Berlin".to_owned(),
        template: TaskSpec::new("square", 12),
        ..ScheduleSpec::default()
    };
    client.put_schedule(&nightly).await?;
    let times = client.preview_schedule("nightly", 3).await?;
    println!("nightly is due next {} times, first at {:?}", times.len(), times.first());
    // An occurrence now, without waiting for the night.
    let now = client.trigger_schedule("nightly").await?;
    println!("triggered: {}", client.result::<u64>(now).await?);
    client.remove_schedule("nightly").await?;

    worker.stop().await;
    client.close();
    Ok(())
}
