//! Decides nothing: runs a worker and a client of the Rust SDK as commands say, and tells facts.
//!
//! Knows no scenario. The protocol is in conformance/PROTOCOL.md.

mod behaviours;
mod client_calls;
mod values;

use std::io::Write;
use std::sync::{Arc, Mutex};

use cronoq::{Attempt, Error, Payload, Worker, WorkerOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use behaviours::{Behaviours, needs_thread};
use client_calls::ClientCalls;
use values::{id_of, seconds_in, set_options, told_error};

/// Writes one fact, at once.
pub fn emit(fact: &str, mut fields: Value) {
    fields["fact"] = fact.into();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{fields}").and_then(|()| out.flush()).expect("stdout is open");
}

/// Why a command failed.
pub enum Failure {
    Sdk(Error),
    /// This field has a value that its type does not hold.
    Impossible(&'static str),
    Unknown,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Sdk(error)
    }
}

#[derive(Default)]
struct Participant {
    behaviours: Arc<Behaviours>,
    clients: ClientCalls,
    worker: Mutex<Option<Arc<Worker>>>,
}

impl Participant {
    async fn answer(self: Arc<Self>, command: Value) {
        let name = command["do"].as_str().unwrap_or_default();
        let id = command["id"].clone();
        match self.act(name, &command).await {
            Ok(mut fields) => {
                fields["id"] = id;
                emit("done", fields);
            }
            Err(Failure::Sdk(error)) => {
                let mut fields = told_error(&error);
                fields["id"] = id;
                emit("failed", fields);
            }
            Err(Failure::Impossible(field)) => {
                let (kind, family) = ("invalid_field", "invalid_request");
                emit("failed", json!({"id": id, "type": kind, "family": family, "message": field}));
            }
            Err(Failure::Unknown) => {
                let kind = "protocol";
                emit("failed", json!({"id": id, "type": kind, "family": kind, "message": name}));
            }
        }
    }

    fn worker(&self) -> Option<Arc<Worker>> {
        self.worker.lock().expect("never poisoned").clone()
    }

    async fn act(&self, name: &str, fields: &Value) -> Result<Value, Failure> {
        match name {
            "exit" => std::process::exit(0),
            "start_worker" => self.start_worker(fields)?,
            "stop_worker" => {
                let worker = self.worker().expect("a worker was started");
                match seconds_in(fields, "drain_timeout") {
                    Some(timeout) => worker.stop_within(timeout).await,
                    None => worker.stop().await,
                }
            }
            "is_ready" => {
                return Ok(json!({"ready": self.worker().is_some_and(|worker| worker.is_ready())}));
            }
            "finish_attempt" => {
                self.behaviours.open(id_of(&fields["task_id"]), fields["behaviour"].clone());
            }
            _ => return self.clients.act(name, fields).await,
        }
        Ok(json!({}))
    }

    fn start_worker(&self, fields: &Value) -> Result<(), Error> {
        let mut worker = Worker::new(hooked(&fields["options"]))?;
        for (kind, does) in fields["handlers"].as_object().into_iter().flatten() {
            let (behaviours, does) = (Arc::clone(&self.behaviours), does.clone());
            if needs_thread(&does) {
                worker.handler_blocking(kind, move |attempt: Attempt, payload: Payload| {
                    behaviours.run_blocking(&does, attempt, payload)
                })?;
            } else {
                worker.handler(kind, move |attempt: Attempt, payload: Payload| {
                    Arc::clone(&behaviours).run(does.clone(), attempt, payload)
                })?;
            }
        }
        if let Some(does) = fields.get("default_handler").cloned() {
            let behaviours = Arc::clone(&self.behaviours);
            worker.default_handler(move |attempt: Attempt, payload: Payload| {
                Arc::clone(&behaviours).run(does.clone(), attempt, payload)
            })?;
        }
        let worker = Arc::new(worker);
        *self.worker.lock().expect("never poisoned") = Some(Arc::clone(&worker));
        if fields["until_signal"] == true {
            tokio::spawn(async move {
                told_end(worker.run_forever().await);
                emit("stopped", json!({}));
                std::process::exit(0);
            });
        } else {
            worker.start()?;
            tokio::spawn(async move { told_end(worker.ended().await) });
        }
        Ok(())
    }
}

fn told_end(outcome: Result<(), Error>) {
    if let Err(error) = outcome {
        let code = error.details().get("code");
        emit("gave_up", json!({"code": code, "message": error.message()}));
    }
}

fn hooked(fields: &Value) -> WorkerOptions {
    let mut options = WorkerOptions {
        on_connect: Some(Arc::new(|endpoint| emit("connected", json!({"endpoint": endpoint})))),
        on_disconnect: Some(Arc::new(|endpoint, reason| {
            emit("disconnected", json!({"endpoint": endpoint, "reason": reason}));
        })),
        on_redirect: Some(Arc::new(|endpoint, refused| {
            emit("redirected", json!({"endpoint": endpoint, "refused": refused}));
        })),
        on_abort: Some(Arc::new(|attempt, reason| {
            let (task_id, number) = (attempt.task_id().to_string(), attempt.number());
            emit("told_to_stop", json!({"task_id": task_id, "attempt": number, "reason": reason}));
        })),
        ..WorkerOptions::default()
    };
    set_options!(options, fields);
    values::set_worker_options(&mut options, fields);
    options
}

#[tokio::main]
async fn main() {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    emit("hello", json!({"language": "rust", "sdk": cronoq::VERSION}));
    let participant = Arc::<Participant>::default();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let command = serde_json::from_str(&line).expect("a command is JSON");
        tokio::spawn(Arc::clone(&participant).answer(command));
    }
    std::process::exit(0);
}
