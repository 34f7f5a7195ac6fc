//! Decides what a handler's end means for its task: the outcomes a worker can report.

use std::borrow::Cow;
use std::time::Duration;

use crate::payload::Encoded;
use crate::proto;
use crate::proto::report::Report as Told;

pub(crate) const MESSAGE_BYTES_MAX: usize = 32 * 1024;
const CUT_MARK: &str = " … (cut)";

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The handler returned a value.
    Completed(Encoded),
    /// The attempt failed; `is_permanent` means that no other attempt shall follow.
    Failed { message: String, is_permanent: bool, retry_after: Option<Duration> },
    /// The attempt was given back unrun.
    Nacked { reason: String },
    /// The handler cancelled its task, or ended after the server cancelled it.
    Cancelled { reason: String },
}

impl Outcome {
    pub(crate) fn retryable(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), is_permanent: false, retry_after: None }
    }

    pub(crate) fn permanent(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), is_permanent: true, retry_after: None }
    }

    pub(crate) fn nacked(reason: impl Into<String>) -> Self {
        Self::Nacked { reason: reason.into() }
    }

    /// The report of this outcome for a lease.
    pub(crate) fn into_report(self, lease: u64) -> proto::Report {
        let told = match self {
            Self::Completed(Encoded { payload, content_type }) => {
                Told::Complete(proto::Complete { lease, output: payload.into(), content_type })
            }
            Self::Failed { message, is_permanent, retry_after } => Told::Fail(proto::Fail {
                lease,
                message: clean_message(&message).into_owned(),
                permanent: is_permanent,
                retry_after_s: retry_after.map(|wait| wait.as_secs_f64()),
            }),
            Self::Nacked { reason } => {
                Told::Nack(proto::Nack { lease, reason: clean_message(&reason).into_owned() })
            }
            Self::Cancelled { .. } => Told::Cancelled(proto::Cancelled { lease }),
        };
        proto::Report { report: Some(told) }
    }
}

/// Text that every store can hold: no NUL, of bounded length (WP-19).
pub(crate) fn clean_message(text: &str) -> Cow<'_, str> {
    let text = if text.contains('\0') {
        Cow::Owned(text.replace('\0', "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    };
    if text.len() <= MESSAGE_BYTES_MAX {
        return text;
    }
    let most = MESSAGE_BYTES_MAX - CUT_MARK.len();
    let room = (0..=most).rev().find(|place| text.is_char_boundary(*place)).unwrap_or(0);
    Cow::Owned(format!("{}{CUT_MARK}", &text[..room]))
}

/// A report as the message that old servers know.
pub(crate) fn single_message(report: proto::Report) -> Option<proto::WorkerMessage> {
    use proto::worker_message::Message;

    let message = match report.report? {
        Told::Complete(complete) => Message::Complete(complete),
        Told::Fail(fail) => Message::Fail(fail),
        Told::Nack(nack) => Message::Nack(nack),
        Told::Cancelled(cancelled) => Message::Cancelled(cancelled),
    };
    Some(proto::WorkerMessage { message: Some(message) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NUL becomes the replacement character, length is bounded and marked (WP-19, R17).
    #[test]
    fn messages_are_cleaned_and_cut() {
        assert_eq!(clean_message("a\0b"), "a\u{fffd}b");
        assert!(matches!(clean_message("plain"), Cow::Borrowed("plain")));
        let long = clean_message(&"é".repeat(MESSAGE_BYTES_MAX)).into_owned();
        assert!(long.len() <= MESSAGE_BYTES_MAX && long.ends_with(CUT_MARK));
    }
}
