//! Decides what handlers of the Rust participant do: behaviours of the participant protocol.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cronoq::{Attempt, HandlerError, Payload};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::emit;
use crate::values::{
    bytes_in, payload_in, seconds_in, sized, text_in, told_instant, told_progress,
};

type Ended = Result<Payload, HandlerError>;
type Gate = (mpsc::UnboundedSender<Value>, Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<Value>>>);

/// Makes handlers that do what a behaviour says.
#[derive(Default)]
pub struct Behaviours {
    /// Where handlers wait until they are told how to end, by task.
    gates: Mutex<HashMap<u64, Gate>>,
}

/// Tells that an attempt has really ended, however it did.
struct EndOf(Attempt);

impl Drop for EndOf {
    fn drop(&mut self) {
        let (task_id, attempt) = (self.0.task_id().to_string(), self.0.number());
        emit("attempt_ended", json!({"task_id": task_id, "attempt": attempt}));
    }
}

impl Behaviours {
    fn gate(&self, task: u64) -> Gate {
        let mut gates = self.gates.lock().expect("never poisoned");
        let made = || {
            let (sender, receiver) = mpsc::unbounded_channel();
            (sender, Arc::new(tokio::sync::Mutex::new(receiver)))
        };
        gates.entry(task).or_insert_with(made).clone()
    }

    /// Tells the oldest attempt of a task that waits how to go on, or the next that will.
    pub fn open(&self, task: u64, behaviour: Value) {
        self.gate(task).0.send(behaviour).expect("the gate is kept");
    }

    pub async fn run(self: Arc<Self>, does: Value, attempt: Attempt, payload: Payload) -> Ended {
        if does["quiet"] == true {
            return self.act(&does, &attempt, payload).await;
        }
        let _end = tell(&does, &attempt);
        self.act(&does, &attempt, payload).await
    }

    pub fn run_blocking(&self, does: &Value, attempt: Attempt, payload: Payload) -> Ended {
        let _end = tell(does, &attempt);
        Handle::current().block_on(self.act(does, &attempt, payload))
    }

    fn act<'a>(
        &'a self,
        does: &'a Value,
        attempt: &'a Attempt,
        payload: Payload,
    ) -> Pin<Box<dyn Future<Output = Ended> + Send + 'a>> {
        Box::pin(async move {
            match does["act"].as_str().unwrap_or_default() {
                "block" => {
                    let gate = self.gate(attempt.task_id()).1;
                    let told = async { gate.lock().await.recv().await.expect("the gate is kept") };
                    let next = if does["ignore_stop"] == true {
                        told.await
                    } else {
                        attempt.until_cancelled(told).await?
                    };
                    return self.act(&next, attempt, payload).await;
                }
                "busy" => {
                    let until = Instant::now() + seconds_in(does, "seconds").unwrap_or_default();
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                }
                "progress" => {
                    for step in does["steps"].as_array().into_iter().flatten() {
                        let data = bytes_in(step, "data").unwrap_or_default();
                        attempt.progress(data, step["fraction"].as_f64())?;
                    }
                }
                "by_attempt" => {
                    let choices = does["attempts"].as_array().expect("a list of behaviours");
                    let place = (attempt.number() as usize).min(choices.len()) - 1;
                    return self.act(&choices[place], attempt, payload).await;
                }
                "parent_outputs" => {
                    let mut outputs = Vec::new();
                    for parent in attempt.parents() {
                        outputs.push(attempt.output::<Payload>(*parent).await?);
                    }
                    return Ok(Payload::new(outputs));
                }
                _ => return end(does, payload),
            }
            let complete = json!({"act": "complete"});
            self.act(does.get("then").unwrap_or(&complete), attempt, payload).await
        })
    }
}

fn end(does: &Value, payload: Payload) -> Ended {
    let message = text_in(does, "message");
    Err(match does["act"].as_str().unwrap_or_default() {
        "complete" => return Ok(payload_in(does, "output").unwrap_or_default()),
        "echo" => return Ok(payload),
        // JSON has no keys but text.
        "unencodable" => return Ok(Payload::new(BTreeMap::from([((1, 2), 3)]))),
        "fail" => match seconds_in(does, "retry_after") {
            Some(wait) => HandlerError::retry_after(wait, message),
            None => HandlerError::retryable(message),
        },
        "permanent" => HandlerError::permanent(message),
        "cancel" => HandlerError::cancel(message),
        "reject" => HandlerError::reject(message),
        "throw" => panic!("{message}"),
        act => HandlerError::permanent(format!("no such behaviour: {act}")),
    })
}

/// Tells whether a behaviour computes or cannot be stopped, which the SDK has threads for.
pub fn needs_thread(does: &Value) -> bool {
    let parts = does["attempts"].as_array().into_iter().flatten().chain(does.get("then"));
    (does["act"] == "busy" && does["on_loop"] != true)
        || (does["act"] == "block" && does["ignore_stop"] == true)
        || parts.into_iter().any(needs_thread)
}

/// Tells that an attempt has begun, and its end once that is dropped; a quiet one tells neither.
fn tell(does: &Value, attempt: &Attempt) -> Option<EndOf> {
    (does["quiet"] != true).then(|| {
        began(attempt);
        EndOf(attempt.clone())
    })
}

fn began(attempt: &Attempt) {
    let mut fields = json!({
        "task_id": attempt.task_id().to_string(),
        "attempt": attempt.number(),
        "kind": attempt.kind(),
        "key": attempt.key(),
        "pool": attempt.pool(),
        "priority": attempt.priority().word(),
        "content_type": attempt.content_type(),
        "tags": attempt.tags(),
        "deadline": attempt.deadline().map(told_instant),
        "timeout": attempt.timeout().as_ref().map(Duration::as_secs_f64),
        "trace_context": attempt.trace_context(),
        "parents": attempt.parents().iter().map(u64::to_string).collect::<Vec<_>>(),
        "last_progress": attempt.last_progress().as_ref().map(told_progress),
    });
    sized(&mut fields, "payload", attempt.payload());
    emit("attempt_started", fields);
}
