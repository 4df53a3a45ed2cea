//! The end of a link, the same for every transport.

use std::sync::OnceLock;
use std::thread::JoinHandle;

use crate::Transport;
use crate::error::{LinkError, Why};
use crate::export::Export;

/// Whether and why a link is closed, and who is to be woken then.
///
/// - The first reason is the reason.
/// - The regions are rung after `closed` has become true, so that an owner they wake sees it.
pub(crate) struct Closing {
    why: OnceLock<Why>,
    transport: Transport,
    exports: Vec<Export>,
}

impl Closing {
    /// An open link that exports `exports`.
    pub(crate) fn new(transport: Transport, exports: Vec<Export>) -> Closing {
        Closing { why: OnceLock::new(), transport, exports }
    }

    /// The local regions that the peer reaches by this link.
    pub(crate) fn exports(&self) -> &[Export] {
        &self.exports
    }

    /// Whether the link is closed.
    pub(crate) fn closed(&self) -> bool {
        self.why.get().is_some()
    }

    /// Fails if the link is closed.
    pub(crate) fn check(&self) -> Result<(), LinkError> {
        match self.why.get() {
            None => Ok(()),
            Some(why) => Err(LinkError::Closed { why: why.clone() }),
        }
    }

    /// Closes the link, unless it is closed already, and gives the reason that counts.
    pub(crate) fn close(&self, why: Why) -> LinkError {
        let mut first = false;
        let why = self.why.get_or_init(|| {
            first = true;
            why
        });
        if first {
            match why {
                Why::Here => tracing::debug!(transport = %self.transport, "link closed"),
                why => tracing::warn!(transport = %self.transport, %why, "link lost"),
            }
            for export in &self.exports {
                export.region.ring();
            }
        }
        LinkError::Closed { why: why.clone() }
    }
}

/// The threads of one link, joined when dropped. What they wait for must have ended by then.
#[derive(Default)]
pub(crate) struct Threads(Vec<JoinHandle<()>>);

impl Threads {
    /// Starts one more.
    pub(crate) fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        self.0.push(std::thread::Builder::new().name(name.into()).spawn(body)?);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        for thread in self.0.drain(..) {
            // The last handle of a link may die on the link's own thread, inside a waker that it woke. It cannot wait for
            // itself, and ends right after.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread of a link has panicked");
            }
        }
    }
}
