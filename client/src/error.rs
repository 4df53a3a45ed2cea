use std::time::Duration;

use headwater_protocol::{Error, ErrorKind};
use thiserror::Error;

/// Why an operation gave no answer. [`ClientError::kind`] says whether it may have happened all the same.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ClientError {
    /// The node said no. What to do is in the [`Error`](enum@Error).
    #[error(transparent)]
    Refused(#[from] Error),
    /// The node could not be asked; nothing was sent. Retry, or ask another node.
    #[error("{address} cannot be reached: {why}")]
    Unreachable {
        /// The node's address.
        address: String,
        /// What went wrong.
        why: String,
    },
    /// The connection ended before the answer came. A read can be asked again; a write may have happened.
    #[error("the connection to {address} was lost: {why}{}", unknown_outcome(*.in_flight_write))]
    ConnectionLost {
        /// The node's address.
        address: String,
        /// What ended it.
        why: String,
        /// Whether it was a write that was under way.
        in_flight_write: bool,
    },
    /// No answer in time. A read can be asked again; a write that was sent may have happened, or may yet.
    #[error("{address} gave no answer within {after:?}{}", unknown_outcome(*.in_flight_write))]
    Timeout {
        /// The node's address.
        address: String,
        /// How long was waited.
        after: Duration,
        /// Whether it was a write that was under way.
        in_flight_write: bool,
    },
    /// What listens there is no node, or speaks another version. Check the address.
    #[error("{address} {why}")]
    NotHeadwater {
        /// The address.
        address: String,
        /// What it is instead.
        why: String,
    },
    /// No node that could be reached knows an RW. Retry when there is one.
    #[error("none of {nodes} is an RW or knows one")]
    NoRw {
        /// The addresses that were asked, for people.
        nodes: String,
    },
    /// The node answered something that cannot be. A write may have happened.
    #[error("{address} answered what cannot be: {why}{}", unknown_outcome(*.in_flight_write))]
    Malformed {
        /// The node's address.
        address: String,
        /// What is wrong with the answer.
        why: String,
        /// Whether it was the answer to a write.
        in_flight_write: bool,
    },
    /// The request is wrong in itself and was not sent. The text says how.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),
}

fn unknown_outcome(in_flight_write: bool) -> &'static str {
    if in_flight_write { "; the write may have happened" } else { "" }
}

impl ClientError {
    /// Whether the operation may have happened.
    pub fn kind(&self) -> ErrorKind {
        match self {
            ClientError::Refused(error) => error.kind(),
            ClientError::ConnectionLost { in_flight_write: true, .. }
            | ClientError::Timeout { in_flight_write: true, .. }
            | ClientError::Malformed { in_flight_write: true, .. } => ErrorKind::Indeterminate,
            _ => ErrorKind::Determinate,
        }
    }

    /// Whether the same request may succeed later, unchanged. Of a write look at [`ClientError::kind`] first.
    pub fn is_transient(&self) -> bool {
        match self {
            ClientError::Refused(error) => error.is_transient(),
            ClientError::Unreachable { .. }
            | ClientError::ConnectionLost { .. }
            | ClientError::Timeout { .. }
            | ClientError::NoRw { .. } => true,
            ClientError::NotHeadwater { .. }
            | ClientError::Malformed { .. }
            | ClientError::InvalidArgument(_) => false,
        }
    }

    /// Whether another node may answer the same read: the fault is the node's, not the request's.
    pub(crate) fn is_of_the_node(&self) -> bool {
        self.is_transient()
            || matches!(self, ClientError::NotHeadwater { .. } | ClientError::Malformed { .. })
    }
}
