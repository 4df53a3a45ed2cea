//! The verbs' objects, owned: each keeps alive what it was made from, so that they go in the right order whoever drops them.
//!
//! What a NIC reads or writes on its own is only ever memory that is registered at the time ([`Registration`]): a request for
//! anything else fails, so posting one is safe whatever it says.
#![allow(unsafe_code)]

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::*;
use rustix::fs::OFlags;

use super::cm::{Id, ReadDepth, check, owned};
use super::queue::READS_POSTED_MAX;
use crate::error::Why;
use crate::memory::WORD_BYTES;
use crate::region::Region;

/// Requests that are posted at once at most.
pub(super) const CHAIN_MAX: usize = 16;

/// Completions that are taken at once at most.
pub(super) const POLL_MAX: usize = 16;

/// Bytes that a queue pair may be able to take along in a request, best first.
const INLINE_BYTES: [u32; 4] = [256, 128, 64, 0];

/// What a device can do.
pub(super) struct Limits {
    /// Requests of one queue.
    pub(super) queue: u32,
    /// Reads in flight of one queue pair, so far as there may be use for them.
    pub(super) reads: ReadDepth,
}

/// A protection domain: what is registered in one cannot be reached by the queue pairs of another.
pub(super) struct Domain {
    pd: NonNull<ibv_pd>,
    id: Arc<Id>,
}

// SAFETY: libibverbs' calls may be made from any thread.
unsafe impl Send for Domain {}
// SAFETY: they may be made from several at once.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn new(id: Arc<Id>) -> io::Result<Domain> {
        // SAFETY: the device is open as long as the id lives.
        let pd = owned(unsafe { ibv_alloc_pd(id.context()?.as_ptr()) })?;
        Ok(Domain { pd, id })
    }

    /// What the device can do.
    pub(super) fn limits(&self) -> io::Result<Limits> {
        let mut about = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the device is open; there is room for the answer.
        errno(unsafe { ibv_query_device(self.id.context()?.as_ptr(), about.as_mut_ptr()) })?;
        // SAFETY: all of it are numbers, zero at least.
        let about = unsafe { about.assume_init() };
        Ok(Limits {
            queue: about.max_qp_wr.max(0) as u32,
            reads: ReadDepth {
                theirs: about.max_qp_rd_atom.clamp(0, READS_POSTED_MAX.into()) as u8,
                ours: about.max_qp_init_rd_atom.clamp(0, READS_POSTED_MAX.into()) as u8,
            },
        })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: what was made in it keeps it alive, so nothing of that is left.
        dropped("protection domain", unsafe { ibv_dealloc_pd(self.pd.as_ptr()) });
    }
}

/// What may be done to registered memory.
#[derive(Clone, Copy)]
pub(super) enum Right {
    /// This side's NIC reads it.
    Source,
    /// This side's NIC writes it.
    Landing,
    /// The peer writes it.
    PeerWrites,
    /// The peer reads it.
    PeerReads,
}

/// A region, registered with the NIC: its pages stay where they are.
pub(super) struct Registration {
    mr: NonNull<ibv_mr>,
    region: Arc<Region>,
    _domain: Arc<Domain>,
}

// SAFETY: as for domains.
unsafe impl Send for Registration {}
// SAFETY: as for domains. The fields read here do not change.
unsafe impl Sync for Registration {}

impl Registration {
    /// Errors: `ENOMEM` mostly where more would be locked than RLIMIT_MEMLOCK allows.
    pub(super) fn new(domain: &Arc<Domain>, region: Arc<Region>, right: Right) -> io::Result<Registration> {
        // Never IBV_ACCESS_RELAXED_ORDERING: the order of writes is a promise of this crate.
        let access = match right {
            Right::Source => ibv_access_flags(0),
            Right::Landing => ibv_access_flags::IBV_ACCESS_LOCAL_WRITE,
            Right::PeerWrites => {
                ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            }
            Right::PeerReads => ibv_access_flags::IBV_ACCESS_REMOTE_READ,
        };
        let words = region.words();
        // SAFETY: the region lives as long as the registration; its words are atomics, for others to write at any time.
        let mr = owned(unsafe {
            ibv_reg_mr(
                domain.pd.as_ptr(),
                words.as_ptr().cast_mut().cast(),
                size_of_val(words),
                access.0 as i32,
            )
        })?;
        Ok(Registration { mr, region, _domain: domain.clone() })
    }

    /// The region.
    pub(super) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where `word` is, for this side's NIC.
    pub(super) fn local(&self, word: usize) -> Place {
        // SAFETY: it is alive.
        let key = unsafe { self.mr.as_ref() }.lkey;
        Place { address: self.address(word), key }
    }

    /// Where the first word is, for the peer's NIC.
    pub(super) fn remote(&self) -> Place {
        // SAFETY: it is alive.
        let key = unsafe { self.mr.as_ref() }.rkey;
        Place { address: self.address(0), key }
    }

    fn address(&self, word: usize) -> u64 {
        (self.region.words().as_ptr().addr() + word * WORD_BYTES) as u64
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: made by `new`; a request that still names it fails.
        dropped("registration", unsafe { ibv_dereg_mr(self.mr.as_ptr()) });
    }
}

/// Registered memory, as a NIC finds it.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) address: u64,
    pub(super) key: u32,
}

impl Place {
    /// So many words further on.
    pub(super) fn plus(self, words: usize) -> Place {
        Place { address: self.address.wrapping_add((words * WORD_BYTES) as u64), ..self }
    }
}

/// Where completion queues say that they have something.
pub(super) struct CompletionChannel {
    channel: NonNull<ibv_comp_channel>,
    id: Arc<Id>,
}

// SAFETY: as for domains.
unsafe impl Send for CompletionChannel {}
// SAFETY: as for domains. The descriptor does not change.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    pub(super) fn new(id: Arc<Id>) -> io::Result<CompletionChannel> {
        // SAFETY: the device is open as long as the id lives.
        let channel = owned(unsafe { ibv_create_comp_channel(id.context()?.as_ptr()) })?;
        let channel = CompletionChannel { channel, id };
        rustix::fs::fcntl_setfl(&channel, OFlags::NONBLOCK)?;
        Ok(channel)
    }

    /// Takes the events that are there.
    pub(super) fn take_events(&self) -> io::Result<()> {
        loop {
            let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel is alive; there is room for the answers.
            match check(unsafe { ibv_get_cq_event(self.channel.as_ptr(), &mut cq, &mut context) }) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                other => other?,
            }
            // SAFETY: a queue is destroyed only when its events are acknowledged.
            unsafe { ibv_ack_cq_events(cq, 1) };
        }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive and the field does not change.
        let fd = unsafe { (*self.channel.as_ptr()).fd };
        // SAFETY: the descriptor is open as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: queues that report here keep it alive, so none is left.
        dropped("completion channel", unsafe { ibv_destroy_comp_channel(self.channel.as_ptr()) });
    }
}

/// Something posted that has ended.
#[derive(Clone, Copy, Default)]
pub(super) struct Completion {
    /// The number it was posted under.
    pub(super) number: u64,
    /// How it ended: 0 is well.
    status: u32,
    /// What a ring of the peer's carries.
    pub(super) immediate: u32,
}

impl Completion {
    /// Fails if what was posted failed.
    pub(super) fn check(&self) -> Result<(), Why> {
        use ibv_wc_status::*;
        match self.status {
            IBV_WC_SUCCESS => Ok(()),
            IBV_WC_RETRY_EXC_ERR => Err(Why::NoAnswer),
            IBV_WC_REM_ACCESS_ERR => Err(Why::AccessRefused),
            status => Err(Why::QueuePair { status, meaning: meaning(status) }),
        }
    }
}

/// The library's words for a status.
fn meaning(status: u32) -> String {
    // SAFETY: it takes any number.
    let text = unsafe { ibv_wc_status_str(status) };
    if text.is_null() {
        return "unknown".into();
    }
    // SAFETY: a constant of the library's, ended by a 0.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A completion queue.
pub(super) struct CompletionQueue {
    cq: NonNull<ibv_cq>,
    _channel: Arc<CompletionChannel>,
}

// SAFETY: as for domains.
unsafe impl Send for CompletionQueue {}
// SAFETY: as for domains.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    pub(super) fn new(channel: &Arc<CompletionChannel>, depth: u32) -> io::Result<CompletionQueue> {
        // SAFETY: the device and the channel are alive as long as the queue.
        let cq = owned(unsafe {
            ibv_create_cq(
                channel.id.context()?.as_ptr(),
                depth as i32,
                ptr::null_mut(),
                channel.channel.as_ptr(),
                0,
            )
        })?;
        Ok(CompletionQueue { cq, _channel: channel.clone() })
    }

    /// Takes what has ended, oldest first; gives how many are in `into`.
    pub(super) fn poll(&self, into: &mut [Completion; POLL_MAX]) -> io::Result<usize> {
        // SAFETY: numbers, of which zero is one.
        let mut taken: [ibv_wc; POLL_MAX] = unsafe { mem::zeroed() };
        // SAFETY: the queue is alive; there is room for so many.
        let count = unsafe { ibv_poll_cq(self.cq.as_ptr(), POLL_MAX as i32, taken.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        for (into, taken) in into.iter_mut().zip(&taken[..count]) {
            // SAFETY: a number in either view. It means something only where the peer sent it.
            let immediate = u32::from_be(unsafe { taken.imm_data_invalidated_rkey_union.imm_data });
            *into = Completion { number: taken.wr_id, status: taken.status, immediate };
        }
        Ok(count)
    }

    /// Asks for an event at the next completion; or, if `solicited`, at the next that fails or that the peer meant to be noticed.
    ///
    /// What has ended before may bring none: look after asking.
    pub(super) fn arm(&self, solicited: bool) -> io::Result<()> {
        // SAFETY: the queue is alive.
        errno(unsafe { ibv_req_notify_cq(self.cq.as_ptr(), solicited.into()) })
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs keep their queues alive, so none uses it, and its events are acknowledged.
        dropped("completion queue", unsafe { ibv_destroy_cq(self.cq.as_ptr()) });
    }
}

/// One thing for the NIC to do.
pub(super) struct WorkRequest<'a> {
    pub(super) number: u64,
    /// Whether its success is to be completed too.
    pub(super) signaled: bool,
    pub(super) work: Work<'a>,
}

/// What to do.
#[derive(Clone, Copy)]
pub(super) enum Work<'a> {
    /// Write from memory of ours, which must stay as it is until this has ended.
    Write { from: Place, words: usize, to: Place },
    /// Write words that are taken along.
    WriteInline { words: &'a [u64], to: Place },
    /// Wake the peer's thread and give it a number. Needs a receive there.
    Ring { immediate: u32 },
    /// Read a word into memory of ours.
    Read { from: Place, to: Place },
}

/// A reliable connected queue pair.
pub(super) struct QueuePair {
    qp: NonNull<ibv_qp>,
    /// Bytes that it takes along in a request at most.
    pub(super) inline_bytes: usize,
    id: Arc<Id>,
    _queues: [Arc<CompletionQueue>; 2],
    _domain: Arc<Domain>,
}

// SAFETY: as for domains.
unsafe impl Send for QueuePair {}
// SAFETY: as for domains.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Makes the id's queue pair, which gets connected with it. An id has one.
    pub(super) fn new(
        domain: &Arc<Domain>,
        sends: &Arc<CompletionQueue>,
        receives: &Arc<CompletionQueue>,
        send_depth: u32,
        receive_depth: u32,
    ) -> io::Result<QueuePair> {
        let id = domain.id.clone();
        let mut refused = None;
        for inline in INLINE_BYTES {
            let mut about = ibv_qp_init_attr {
                qp_context: ptr::null_mut(),
                send_cq: sends.cq.as_ptr(),
                recv_cq: receives.cq.as_ptr(),
                srq: ptr::null_mut(),
                cap: ibv_qp_cap {
                    max_send_wr: send_depth,
                    max_recv_wr: receive_depth,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: inline,
                },
                qp_type: ibv_qp_type::IBV_QPT_RC,
                sq_sig_all: 0,
            };
            // SAFETY: all that it is made of is alive and stays so; the library refuses an id that has one.
            match check(unsafe { rdma_create_qp(id.as_ptr(), domain.pd.as_ptr(), &mut about) }) {
                Err(error) => refused = Some(error),
                Ok(()) => {
                    // SAFETY: the id is alive and has a queue pair now.
                    let qp = owned(unsafe { (*id.as_ptr()).qp })?;
                    let inline_bytes = about.cap.max_inline_data.min(inline) as usize;
                    let queues = [sends.clone(), receives.clone()];
                    return Ok(QueuePair { qp, inline_bytes, id, _queues: queues, _domain: domain.clone() });
                }
            }
        }
        Err(refused.unwrap_or_else(|| io::ErrorKind::Unsupported.into()))
    }

    /// How many reads it may have in flight, once connected.
    pub(super) fn read_depth(&self) -> io::Result<usize> {
        let mut about = MaybeUninit::<ibv_qp_attr>::zeroed();
        let mut made = MaybeUninit::<ibv_qp_init_attr>::zeroed();
        let what = ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC.0 as i32;
        // SAFETY: the queue pair is alive; there is room for the answers.
        errno(unsafe { ibv_query_qp(self.qp.as_ptr(), about.as_mut_ptr(), what, made.as_mut_ptr()) })?;
        // SAFETY: the number was filled in.
        Ok(usize::from(unsafe { (*about.as_ptr()).max_rd_atomic }))
    }

    /// Posts `requests`, [`CHAIN_MAX`] at most, in this order. On an error some of them may have been posted.
    pub(super) fn post(&self, requests: &[WorkRequest<'_>]) -> io::Result<()> {
        if requests.is_empty() {
            return Ok(());
        }
        // SAFETY: numbers and pointers, of which zero is one.
        let mut chain: [ibv_send_wr; CHAIN_MAX] = unsafe { mem::zeroed() };
        let mut pieces = [ibv_sge { addr: 0, length: 0, lkey: 0 }; CHAIN_MAX];
        let mut next = ptr::null_mut();
        for ((entry, piece), request) in
            chain[..requests.len()].iter_mut().zip(&mut pieces).zip(requests).rev()
        {
            let mut flags = ibv_send_flags(0);
            if request.signaled {
                flags |= ibv_send_flags::IBV_SEND_SIGNALED;
            }
            let (opcode, remote, local) = match request.work {
                Work::Write { from, words, to } => {
                    (ibv_wr_opcode::IBV_WR_RDMA_WRITE, to, Some((from, words * WORD_BYTES)))
                }
                Work::WriteInline { words, to } => {
                    flags |= ibv_send_flags::IBV_SEND_INLINE;
                    let from = Place { address: words.as_ptr().addr() as u64, key: 0 };
                    (ibv_wr_opcode::IBV_WR_RDMA_WRITE, to, Some((from, size_of_val(words))))
                }
                Work::Ring { immediate } => {
                    flags |= ibv_send_flags::IBV_SEND_SOLICITED;
                    entry.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
                    (ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, Place { address: 0, key: 0 }, None)
                }
                Work::Read { from, to } => (ibv_wr_opcode::IBV_WR_RDMA_READ, from, Some((to, WORD_BYTES))),
            };
            entry.wr_id = request.number;
            entry.opcode = opcode;
            entry.send_flags = flags.0;
            entry.wr.rdma = rdma_t { remote_addr: remote.address, rkey: remote.key };
            if let Some((place, bytes)) = local {
                *piece = ibv_sge { addr: place.address, length: bytes as u32, lkey: place.key };
                entry.sg_list = piece;
                entry.num_sge = 1;
            }
            entry.next = next;
            next = entry;
        }
        let mut first_refused = ptr::null_mut();
        // SAFETY: the queue pair is alive; the chain, its pieces and the words taken along are copied before this returns. Other memory
        // the NIC reaches only as far as it is registered.
        errno(unsafe { ibv_post_send(self.qp.as_ptr(), next, &mut first_refused) })
    }

    /// Posts `count` receives, each for one ring of the peer's.
    pub(super) fn post_receives(&self, count: usize) -> io::Result<()> {
        for _ in 0..count {
            let mut receive =
                ibv_recv_wr { wr_id: 0, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
            let mut refused = ptr::null_mut();
            // SAFETY: the queue pair is alive; what describes the receive is copied before this returns, and it has no memory.
            errno(unsafe { ibv_post_recv(self.qp.as_ptr(), &mut receive, &mut refused) })?;
        }
        Ok(())
    }

    /// Puts it out of service: it takes no more packets from the peer, and what is posted fails.
    pub(super) fn revoke(&self) {
        let mut about = MaybeUninit::<ibv_qp_attr>::zeroed();
        // SAFETY: numbers, of which zero is one; only this one is read.
        unsafe { (*about.as_mut_ptr()).qp_state = ibv_qp_state::IBV_QPS_ERR };
        let what = ibv_qp_attr_mask::IBV_QP_STATE.0 as i32;
        // SAFETY: the queue pair is alive, and any state may become this one.
        let revoked = errno(unsafe { ibv_modify_qp(self.qp.as_ptr(), about.as_mut_ptr(), what) });
        if let Err(error) = revoked {
            // It is destroyed next, which ends all access too.
            tracing::warn!(%error, "a queue pair could not be put out of service");
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the id is alive, and this its queue pair, made by `new`. Once it is gone the NIC touches no memory for it.
        unsafe { rdma_destroy_qp(self.id.as_ptr()) };
    }
}

/// What a call of libibverbs says: 0 or the error's number. (A provider may say -1 and set `errno`.)
fn errno(answer: i32) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        number if number > 0 => Err(io::Error::from_raw_os_error(number)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Says so if something could not be given back: only a device that is gone does that, or a fault of ours.
fn dropped(what: &str, answer: i32) {
    if let Err(error) = errno(answer) {
        tracing::warn!(what, %error, "the NIC does not give back a resource");
    }
}
