//! Decides how a handler is called and what its end means.
//!
//! A handler is `async fn(Attempt, In) -> Result<Out, E>`, or the same without `async` for code that
//! blocks its thread. The payload is decoded into an `In`, what it returns is encoded.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::attempt::{Attempt, Ending, HandlerError};
use crate::errors::{Error, ErrorKind, Result};
use crate::outcome::Outcome;
use crate::payload::{self, Encoded};
use crate::run::{Run, Stop};

/// What a handler comes to: an encoded value, a value that cannot be encoded, or another end.
type Ended = Result<Result<Encoded>, HandlerError>;

/// Decodes an attempt's payload and returns what is left to do with it.
pub(crate) type Handler = Arc<dyn Fn(&Attempt) -> Result<BoxFuture<'static, Ended>> + Send + Sync>;

/// Makes a handler of an async function with types of its own.
pub(crate) fn typed<In, Out, E, F, Fut>(function: F) -> Handler
where
    In: DeserializeOwned + Send + 'static,
    Out: Serialize + Send + 'static,
    E: Into<HandlerError>,
    F: Fn(Attempt, In) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Out, E>> + Send + 'static,
{
    let function = Arc::new(function);
    Arc::new(move |attempt| {
        let input: In = attempt.decode()?;
        let (function, attempt) = (Arc::clone(&function), attempt.clone());
        Ok(Box::pin(async move {
            let host = Arc::clone(&attempt.host);
            let output = function(attempt, input).await.map_err(Into::into)?;
            Ok(payload::encode(host.codec(), &output))
        }))
    })
}

/// Makes a handler of a function that blocks; it runs on a thread for such work.
pub(crate) fn typed_blocking<In, Out, E, F>(function: F) -> Handler
where
    In: DeserializeOwned + Send + 'static,
    Out: Serialize + Send + 'static,
    E: Into<HandlerError> + Send + 'static,
    F: Fn(Attempt, In) -> Result<Out, E> + Send + Sync + 'static,
{
    let function = Arc::new(function);
    typed(move |attempt: Attempt, input: In| {
        let function = Arc::clone(&function);
        async move {
            let running = tokio::task::spawn_blocking(move || function(attempt, input));
            match running.await {
                Ok(ended) => ended.map_err(Into::into),
                Err(error) => match error.try_into_panic() {
                    Ok(thrown) => std::panic::resume_unwind(thrown),
                    Err(error) => Err(HandlerError::from(error)),
                },
            }
        }
    })
}

/// The rest of the way to a handler, for an [`Interceptor`] to go.
pub struct Next(Box<dyn FnOnce() -> BoxFuture<'static, Result<(), HandlerError>> + Send>);

impl Next {
    /// Runs the next interceptor, or the handler.
    pub async fn run(self) -> Result<(), HandlerError> {
        (self.0)().await
    }
}

/// Called around every handler: for traces, metrics, checks. What it returns is how the attempt
/// ends; `Ok` without having run the rest is an error of its own.
///
/// A closure `|attempt, next| async move { next.run().await }` is one.
pub trait Interceptor: Send + Sync + 'static {
    /// Does what is to be done before, runs `next`, does what is to be done after.
    fn around(&self, attempt: Attempt, next: Next) -> BoxFuture<'static, Result<(), HandlerError>>;
}

impl<F, Fut> Interceptor for F
where
    F: Fn(Attempt, Next) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    fn around(&self, attempt: Attempt, next: Next) -> BoxFuture<'static, Result<(), HandlerError>> {
        Box::pin(self(attempt, next))
    }
}

/// The handlers of a worker, by kind.
#[derive(Clone, Default)]
pub(crate) struct Handlers {
    by_kind: BTreeMap<String, Handler>,
    fallback: Option<Handler>,
}

impl Handlers {
    pub(crate) fn add(&mut self, kind: String, handler: Handler) -> Result<()> {
        if self.by_kind.contains_key(&kind) {
            let text = format!("kind {kind:?} has a handler already");
            return Err(Error::new(ErrorKind::InvalidOption, text));
        }
        self.by_kind.insert(kind, handler);
        Ok(())
    }

    pub(crate) fn add_default(&mut self, handler: Handler) -> Result<()> {
        if self.fallback.is_some() {
            let text = "there is a default handler already";
            return Err(Error::new(ErrorKind::InvalidOption, text));
        }
        self.fallback = Some(handler);
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_kind.is_empty() && self.fallback.is_none()
    }

    pub(crate) fn find(&self, kind: &str) -> Option<&Handler> {
        self.by_kind.get(kind).or(self.fallback.as_ref())
    }

    /// What the server may send; none means any (WP-01).
    pub(crate) fn kinds(&self) -> Vec<String> {
        if self.fallback.is_some() { Vec::new() } else { self.by_kind.keys().cloned().collect() }
    }
}

/// Runs a handler to its end, whatever that is, and says what it means (WP-17).
pub(crate) async fn execute(
    handler: Handler,
    attempt: Attempt,
    interceptors: Arc<[Arc<dyn Interceptor>]>,
) -> Outcome {
    let run = Arc::clone(&attempt.run);
    let called = async move {
        match handler(&attempt) {
            Ok(work) if interceptors.is_empty() => Ok(work.await),
            Ok(work) => Ok(intercepted(work, &attempt, &interceptors).await),
            Err(unreadable) => Err(unreadable),
        }
    };
    match AssertUnwindSafe(called).catch_unwind().await {
        Ok(Ok(ended)) => meaning_of(&run, ended),
        Ok(Err(unreadable)) => Outcome::permanent(unreadable.message()), // WP-14
        Err(thrown) => {
            let text = format!("panic: {}", text_of(thrown.as_ref()));
            tracing::error!(task = run.message.task_id, why = text, "handler panicked");
            after_stop(&run, Outcome::retryable(text))
        }
    }
}

async fn intercepted(
    work: BoxFuture<'static, Ended>,
    attempt: &Attempt,
    interceptors: &[Arc<dyn Interceptor>],
) -> Ended {
    let made: Arc<Mutex<Option<Result<Encoded>>>> = Arc::default();
    let place = Arc::clone(&made);
    let mut next = Next(Box::new(move || {
        Box::pin(async move {
            let value = work.await?;
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
            Ok(())
        })
    }));
    for interceptor in interceptors.iter().rev() {
        let (interceptor, attempt, inner) = (Arc::clone(interceptor), attempt.clone(), next);
        next = Next(Box::new(move || interceptor.around(attempt, inner)));
    }
    next.run().await?;
    let made = made.lock().unwrap_or_else(PoisonError::into_inner).take();
    made.ok_or_else(|| HandlerError::retryable("an interceptor did not run the handler"))
}

fn meaning_of(run: &Run, ended: Ended) -> Outcome {
    let error = match ended {
        Ok(Ok(encoded)) => return Outcome::Completed(encoded),
        Ok(Err(error)) => return Outcome::permanent(format!("output not encodable: {error}")), // WP-18
        Err(error) => error,
    };
    let outcome = match error.0 {
        Ending::Retryable { message, retry_after } => {
            Outcome::Failed { message, is_permanent: false, retry_after }
        }
        Ending::Permanent(message) => Outcome::permanent(message),
        Ending::Cancel(reason) => Outcome::Cancelled { reason },
        Ending::Reject(reason) => Outcome::nacked(reason),
        Ending::Stopped => {
            let text = run.stop().map_or("the handler stopped by itself", Stop::text);
            Outcome::retryable(text)
        }
    };
    after_stop(run, outcome)
}

/// What a failure comes to when the lease had run out: a retryable one, whatever it was (WP-24).
fn after_stop(run: &Run, outcome: Outcome) -> Outcome {
    match run.stop() {
        Some(Stop::Expired) => Outcome::retryable(Stop::Expired.text()),
        _ => outcome,
    }
}

/// What a panic said.
pub(crate) fn text_of(thrown: &(dyn Any + Send)) -> &str {
    let borrowed = thrown.downcast_ref::<&'static str>().copied();
    borrowed.or_else(|| thrown.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}
