//! The helpers for tests, tried by tests.

use std::sync::mpsc;

use super::*;

/// Every end of a handler is told as what it is.
#[tokio::test]
async fn ends_are_told() {
    let handler = |attempt: Attempt, how: String| async move {
        match how.as_str() {
            "retry" => Err(HandlerError::retry_after(Duration::from_secs(1), "later")),
            "reject" => Err(HandlerError::reject("elsewhere")),
            "wait" => {
                attempt.cancelled().await;
                Err(HandlerError::cancel("told to"))
            }
            _ => Ok(how),
        }
    };
    let run = |how: &'static str| run_handler(handler, FakeAttempt::with_payload(how));
    assert_eq!(run("fine").await.unwrap().value::<String>().unwrap(), "fine");
    let retried = run("retry").await.unwrap();
    assert_eq!(retried.failure.as_deref(), Some("later"));
    assert_eq!(retried.retry_after, Some(Duration::from_secs(1)));
    assert!(!retried.is_permanent && retried.value::<String>().is_err());
    assert_eq!(run("reject").await.unwrap().rejection.as_deref(), Some("elsewhere"));
    let cancelled = FakeAttempt::with_payload("wait");
    cancelled.cancelled.cancel();
    assert!(run_handler(handler, cancelled).await.unwrap().is_cancelled);
    let wrong = run_handler(handler, FakeAttempt::with_payload(5)).await.unwrap();
    assert!(wrong.is_permanent);
}

/// A handler under test sees what it is told, and its progress is heard.
#[tokio::test]
async fn attempts_are_what_the_test_says() {
    let handler = |attempt: Attempt, (): ()| -> Result<u64, HandlerError> {
        attempt.progress("x", None)?;
        let parent = attempt.output_blocking::<u64>(attempt.parents()[0])?;
        Ok(attempt.task_id() + u64::from(attempt.number()) + parent)
    };
    let (heard, progress) = mpsc::channel();
    let fake = FakeAttempt {
        task_id: 40,
        number: 2,
        outputs: [(7, Payload::new(100))].into(),
        on_progress: Some(Arc::new(move |told| heard.send(told.data).unwrap())),
        ..FakeAttempt::default()
    };
    let outcome = run_handler_blocking(handler, fake).await.unwrap();
    assert_eq!(outcome.value::<u64>().unwrap(), 142);
    assert_eq!(progress.recv().unwrap(), b"x");
}
