//! Decides which call of the Rust client each command of the participant protocol makes.

use std::sync::Mutex;

use cronoq::{
    BulkAction, BulkOptions, CancellationToken, Client, ClientOptions, Error, ListOptions, Payload,
    TaskHandle, WatchOptions,
};
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::values::{
    flag_in, id_of, impossible_duration, list_in, number_in, seconds_in, set_options, sized,
    target_in, text_in, to_filter, to_schedule, to_spec, told_detail, told_error, told_event,
    told_info, told_result, told_schedule,
};
use crate::{Failure, emit};

/// The commands for clients.
#[derive(Default)]
pub struct ClientCalls {
    client: Mutex<Option<Client>>,
    watch: Mutex<CancellationToken>,
}

impl ClientCalls {
    fn client(&self) -> Client {
        self.client.lock().expect("never poisoned").clone().expect("a client was started")
    }

    pub async fn act(&self, name: &str, fields: &Value) -> Result<Value, Failure> {
        if name == "start_client" {
            let mut options = ClientOptions::default();
            set_options!(options, &fields["options"]);
            crate::values::set_client_options(&mut options, &fields["options"]);
            *self.client.lock().expect("never poisoned") = Some(Client::new(options)?);
            return Ok(json!({}));
        }
        let mut client = self.client();
        if let Some(deadline) = seconds_in(fields, "call_deadline") {
            client = client.with_deadline(deadline);
        }
        if let Some(field) = impossible_duration(&fields["task"]) {
            return Err(Failure::Impossible(field));
        }
        let target = || target_in(&fields["target"]);
        let specs = || list_in(fields, "tasks").iter().map(to_spec).collect::<Vec<_>>();
        Ok(match name {
            "close_client" => {
                client.close();
                json!({})
            }
            "submit" => told_handle(&client.submit(to_spec(&fields["task"])).await?),
            "submit_together" => {
                let tasks = if fields["tasks"].is_array() { specs() } else { copies(fields) };
                let calls = tasks.into_iter().map(|task| client.submit(task));
                json!({"outcomes": told_outcomes(join_all(calls).await)})
            }
            "submit_many" => json!({"outcomes": told_outcomes(client.submit_many(specs()).await)}),
            "submit_batch" => {
                let handles = client.submit_batch(specs()).await?;
                json!({"outcomes": told_outcomes(handles.into_iter().map(Ok).collect())})
            }
            "get" => json!({"task": told_info(&client.get(target()).await?)}),
            "detail" => told_detail(&client.detail(target()).await?),
            "wait" => {
                let result = match seconds_in(fields, "timeout") {
                    Some(timeout) => client.wait_within(target(), timeout).await?,
                    None => client.wait(target()).await?,
                };
                json!({"result": told_result(&result)})
            }
            "wait_many" => {
                let ids = list_in(fields, "targets").iter().map(id_of).collect::<Vec<_>>();
                let results = match seconds_in(fields, "timeout") {
                    Some(timeout) => client.wait_many_within(ids, timeout).await?,
                    None => client.wait_many(ids).await?,
                };
                json!({"results": results.iter().map(told_result).collect::<Vec<_>>()})
            }
            "result" => {
                let output: Payload = match seconds_in(fields, "timeout") {
                    Some(timeout) => client.result_within(target(), timeout).await?,
                    None => client.result(target()).await?,
                };
                told_output(&output)
            }
            "cancel" => json!({"changed": client.cancel(target()).await?}),
            "retry" => json!({"changed": client.retry(target()).await?}),
            "delete" => json!({"changed": client.delete(target()).await?}),
            "bulk" => {
                let action = BulkAction::from_word(&text_in(fields, "action"));
                let (limit, dry_run) = (number_in(fields, "limit"), flag_in(fields, "dry_run"));
                let options = BulkOptions { limit, dry_run, ..BulkOptions::default() };
                let wanted = to_filter(&fields["filter"]);
                let done = client.bulk(action.expect("an action"), &wanted, options).await?;
                let next_after = done.next_after.to_string();
                json!({"matched": done.matched, "changed": done.changed, "next_after": next_after})
            }
            "list" => {
                let options = ListOptions {
                    page_size: number_in(fields, "page_size"),
                    newest_first: flag_in(fields, "newest_first"),
                    ..ListOptions::default()
                };
                let mut pages = client.list(&to_filter(&fields["filter"]), options);
                let mut tasks = Vec::new();
                while let Some(task) = pages.next().await {
                    tasks.push(told_info(&task?));
                }
                json!({"tasks": tasks, "unavailable_shards": pages.unavailable_shards()})
            }
            "watch" => {
                let texts = |name| list_in(fields, name).iter().filter_map(Value::as_str);
                let mut watch = client.watch(WatchOptions {
                    pools: texts("pools").map(str::to_owned).collect(),
                    ids: list_in(fields, "ids").iter().map(id_of).collect(),
                    keys: texts("keys").map(str::to_owned).collect(),
                    all_transitions: flag_in(fields, "all_transitions"),
                    ..WatchOptions::default()
                });
                let stopped = CancellationToken::new();
                *self.watch.lock().expect("never poisoned") = stopped.clone();
                while let Some(Some(event)) = stopped.run_until_cancelled(watch.next()).await {
                    emit("event", told_event(&event?));
                }
                json!({})
            }
            "stop_watch" => {
                self.watch.lock().expect("never poisoned").cancel();
                json!({})
            }
            "put_schedule" => {
                client.put_schedule(&to_schedule(&fields["schedule"])).await?;
                json!({})
            }
            "get_schedule" => {
                let found = client.schedule(text_in(fields, "name")).await?;
                json!({"schedule": told_schedule(&found.schedule)})
            }
            "remove_schedule" => {
                json!({"changed": client.remove_schedule(text_in(fields, "name")).await?})
            }
            _ => return Err(Failure::Unknown),
        })
    }
}

/// The same task so many times, each with a key of its own if it has one.
fn copies(fields: &Value) -> Vec<cronoq::TaskSpec> {
    let numbered = |number: u32| {
        let mut task = to_spec(&fields["task"]);
        if !task.key.is_empty() {
            task.key = format!("{}-{number}", task.key);
        }
        task
    };
    (1..=number_in(fields, "count")).map(numbered).collect()
}

fn told_handle(handle: &TaskHandle) -> Value {
    json!({"task_id": handle.id().to_string(), "duplicate": handle.duplicate()})
}

fn told_outcomes(outcomes: Vec<Result<TaskHandle, Error>>) -> Vec<Value> {
    let told = |outcome: &Result<TaskHandle, Error>| match outcome {
        Ok(handle) => told_handle(handle),
        Err(error) => told_error(error),
    };
    outcomes.iter().map(told).collect()
}

fn told_output(output: &Payload) -> Value {
    match output.as_bytes() {
        Some(bytes) => {
            let mut fields = json!({});
            sized(&mut fields, "output", bytes);
            fields
        }
        None => json!({"output": output}),
    }
}
