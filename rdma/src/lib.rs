//! Moving 64-bit words into and out of another process's memory, one-sided: the peer's own code takes no part.
//!
//! An owner makes a [`Region`], says what a peer may do to it ([`Export`]), and links with the peer over one of the
//! [transports](Transport). Each side then holds a [`Link`]: access to the *other* side's regions. What the words
//! mean is no concern of this crate.
//!
//! # Order
//!
//! - Words are 64 bits, little-endian, aligned, and read and written whole. Nothing longer than a word is: the words
//!   of one [`Link::write`] become visible in any order.
//! - The writes of one link become visible in the order posted: an owner that loads a word with
//!   [`Acquire`](std::sync::atomic::Ordering::Acquire) and finds what one write put there also finds everything
//!   that the writes before it put anywhere. So data first, then, by a write of its own, the word that says it is there.
//! - A [`Link::ring`] comes after the writes before it: an owner that it wakes finds them.
//! - A [`Link::read`] returns what the word held at some moment between the call and the answer.
//! - Different links, and threads that post on one link without agreeing on an order, have none between them.
//!
//! A write is posted, not awaited. `Ok` says that it is on its way; whether it arrived, the owner must say, by a write
//! of its own. Once a link has closed nobody knows which of the last writes arrived.
//!
//! # What nobody is protected from
//!
//! A peer that may write a region may write anything into it at any time (except its bell, over tcp): a reader of
//! such memory believes only what proves itself (S2), and it loads each word once. Over shm nobody can take memory
//! back from a process that has mapped it: a deposed writer that resumes still writes. An owner that turns to
//! another peer therefore abandons its region and makes a new one for each handshake (E3).

#[cfg(not(all(target_endian = "little", target_pointer_width = "64", target_os = "linux")))]
compile_error!("regions are shared as little-endian words of 64 bits, by memfd and futex");

mod memory;
mod bell;
mod region;
mod export;
mod error;
mod closing;
mod announce;
pub mod shm;
pub mod tcp;
#[cfg_attr(not(feature = "verbs"), path = "verbs/absent.rs")]
pub mod verbs;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

pub use bell::BELL_WORDS;
pub use error::{LinkError, Violation, Why};
pub use export::{Access, EXPORTS_MAX, Export, RegionId};
pub use region::{Region, RegionError};

/// A step of [`Link::post`].
#[derive(Clone, Copy, Debug)]
pub enum Post<'a> {
    /// [`Link::write`]; of no words, nothing.
    Write {
        /// The peer's region.
        region: RegionId,
        /// Where the first word goes.
        at_word: usize,
        /// The words.
        words: &'a [u64],
    },
    /// [`Link::ring`].
    Ring {
        /// The peer's region.
        region: RegionId,
    },
}

/// One-sided access to one peer's regions. The crate's front page says what is promised about order.
///
/// - A link dies once and for all: after [`closed`](Link::closed) has been true it stays so.
/// - When it dies, for whatever reason, the local regions that were exported on it are rung once, after `closed` has
///   become true: an owner asleep on one of them wakes and sees it.
/// - Dropping the last handle closes the link and joins its threads.
pub trait Link: Send + Sync {
    /// Which transport carries it.
    fn transport(&self) -> Transport;

    /// Posts a write of `words` into the peer's region, the first at word `at_word`.
    ///
    /// May block while the peer takes nothing, until [`close`](Link::close) or the link's own deadline. The bell
    /// at the start of the region ([`BELL_WORDS`]) cannot be written.
    ///
    /// Errors: [`LinkError::NoSuchRegion`], [`LinkError::NotAllowed`] and [`LinkError::OutOfBounds`] place nothing and leave the link as it was;
    /// after [`LinkError::Closed`] nobody knows whether the last writes arrived.
    fn write(&self, region: RegionId, at_word: usize, words: &[u64]) -> Result<(), LinkError>;

    /// Rings the bell of the peer's region, after the writes posted before. A region that may only be read cannot be rung.
    ///
    /// Errors as [`write`](Link::write).
    fn ring(&self, region: RegionId) -> Result<(), LinkError>;

    /// Posts all of these in this order, as one where that is cheaper.
    ///
    /// Errors as [`write`](Link::write), of the first that cannot be posted; those before it may have been.
    fn post(&self, posts: &[Post<'_>]) -> Result<(), LinkError> {
        posts.iter().try_for_each(|post| match *post {
            Post::Write { region, at_word, words } => self.write(region, at_word, words),
            Post::Ring { region } => self.ring(region),
        })
    }

    /// Posts a write and then rings, if both can be done at once without waiting for anything; else does nothing and gives false. For
    /// where nobody may be kept waiting: then somebody else has to [`write`](Link::write) and [`ring`](Link::ring). Over tcp always false.
    ///
    /// Errors as [`write`](Link::write).
    fn write_now(&self, region: RegionId, at_word: usize, words: &[u64]) -> Result<bool, LinkError>;

    /// Reads one word of the peer's region. The read is on its way when this returns, whether or not the future is polled;
    /// the future may be dropped.
    fn read(&self, region: RegionId, word: usize) -> Read;

    /// Whether the link is dead.
    fn closed(&self) -> bool;

    /// Closes the link: unblocks a write that waits for the peer, fails the reads in flight, and lets the peer know.
    /// Everything asked of it afterwards is [`LinkError::Closed`]. May be called any number of times.
    fn close(&self);
}

/// What carries a link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transport {
    /// Both processes are on one host and have mapped each other's regions.
    Shm,
    /// Reads and writes are frames on TCP connections, carried out by a thread of the owner's.
    Tcp,
    /// The NICs carry out reads and writes: InfiniBand, RoCE, soft-RoCE.
    Verbs,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
            Transport::Verbs => "verbs",
        })
    }
}

/// A read on its way: a future of the word's value.
///
/// Errors: those of [`Link::write`], and [`LinkError::TooManyReads`].
#[must_use = "the value is the future's"]
pub struct Read(Progress);

enum Progress {
    Ready(std::future::Ready<Result<u64, LinkError>>),
    Waiting(oneshot::Receiver<Result<u64, LinkError>>),
    #[cfg(feature = "verbs")]
    Verbs(verbs::ReadInFlight),
}

impl Read {
    /// A read that has its answer already.
    pub fn ready(answer: Result<u64, LinkError>) -> Read {
        Read(Progress::Ready(std::future::ready(answer)))
    }

    /// A read whose answer comes through a channel.
    fn waiting(answer: oneshot::Receiver<Result<u64, LinkError>>) -> Read {
        Read(Progress::Waiting(answer))
    }
}

impl Future for Read {
    type Output = Result<u64, LinkError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Progress::Ready(answer) => Pin::new(answer).poll(cx),
            Progress::Waiting(answer) => poll_answer(answer, cx),
            #[cfg(feature = "verbs")]
            Progress::Verbs(read) => read.poll(cx),
        }
    }
}

/// Looks for an answer in its channel.
fn poll_answer(
    answer: &mut oneshot::Receiver<Result<u64, LinkError>>,
    cx: &mut Context<'_>,
) -> Poll<Result<u64, LinkError>> {
    // A sender that goes without a word is one whose link goes with it.
    Pin::new(answer).poll(cx).map(|received| received.unwrap_or(Err(LinkError::Closed { why: Why::Here })))
}
