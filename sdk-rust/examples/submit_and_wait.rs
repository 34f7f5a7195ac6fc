//! A client that submits work for the worker of `hello_worker` and waits for it.
//!
//! Run it with `cargo run --example submit_and_wait -- 127.0.0.1:7070`.

use std::collections::BTreeMap;
use std::time::Duration;

use cronoq::{Client, ClientOptions, ErrorKind, Priority, TaskSpec, new_key};
use serde::Serialize;

#[derive(Serialize)]
struct Order {
    item: &'static str,
    count: u32,
}

#[tokio::main]
async fn main() -> cronoq::Result<()> {
    let endpoint = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7070".to_owned());
    let client = Client::new(ClientOptions { endpoint, ..Default::default() })?;

    // With a key, a submission whose answer was lost is safe to repeat, and is repeated.
    let task = client.submit(TaskSpec::new("count_letters", "banana").key(new_key())).await?;
    let letters: BTreeMap<char, usize> = task.result().await?;
    println!("letters: {letters:?}");

    let urgent = TaskSpec {
        priority: Some(Priority::High),
        timeout: Some(Duration::from_secs(30)),
        ..TaskSpec::new("bake", Order { item: "bread", count: 3 })
    };
    let baked: String = client.submit(urgent).await?.result().await?;
    println!("baked: {baked}");

    // Each on its own: concurrent submissions share requests.
    let orders = (1..=5).map(|count| TaskSpec::new("bake", Order { item: "roll", count }));
    for outcome in client.submit_many(orders).await {
        let baked: String = outcome?.result().await?;
        println!("baked: {baked}");
    }

    let nothing = client.submit(TaskSpec::new("bake", Order { item: "air", count: 0 })).await?;
    match nothing.result::<String>().await {
        Err(error) if error.kind() == ErrorKind::TaskFailed => println!("failed: {error}"),
        other => println!("unexpected: {other:?}"),
    }
    client.close();
    Ok(())
}
