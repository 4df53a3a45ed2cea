//! How memfds change hands: the announcement, with one descriptor for each region (SCM_RIGHTS), then a byte that says they were taken.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::SealFlags;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use crate::announce;
use crate::error::{LinkError, Violation, Why};
use crate::export::{Access, EXPORTS_MAX, Export, Extent};
use crate::memory::{Mapping, WORD_BYTES};
use crate::region::SIZE_SEALS;

/// What each side says when it has mapped the other's regions.
const TAKEN: u8 = 1;

/// A peer's region, mapped for what it may be used for.
pub(super) struct Handed {
    pub(super) extent: Extent,
    pub(super) mapping: Mapping,
}

/// Gives `exports`, takes the peer's, and makes sure that the peer took ours; all before `deadline`.
pub(super) fn exchange(
    stream: &UnixStream,
    exports: &[Export],
    deadline: Instant,
) -> Result<Vec<Handed>, LinkError> {
    // What one side sends fits into the other's socket buffer: both may send before either receives.
    give(stream, exports, deadline)?;
    let (extents, files) = take(stream, deadline)?;
    let handed = extents
        .into_iter()
        .zip(files)
        .map(|(extent, file)| map(extent, file.as_fd()))
        .collect::<Result<Vec<Handed>, LinkError>>()?;

    wait_until(stream, deadline)
        .and_then(|()| (&*stream).write_all(&[TAKEN]))
        .map_err(failed("tell the peer that its regions are mapped"))?;
    let mut taken = [0];
    wait_until(stream, deadline)
        .and_then(|()| (&*stream).read_exact(&mut taken))
        .map_err(failed("hear from the peer that it mapped ours"))?;
    if taken != [TAKEN] {
        return Err(Violation::Unasked.into());
    }
    Ok(handed)
}

/// Sends the announcement with the descriptors.
pub(super) fn give(stream: &UnixStream, exports: &[Export], deadline: Instant) -> Result<(), LinkError> {
    for export in exports.iter().filter(|export| export.access == Access::Read) {
        // From here on the file cannot be written, nor mapped to be written, by anybody, whatever descriptor they have or make
        // of it. Our own mapping, older than the seal, stays writable.
        rustix::fs::fcntl_add_seals(export.region.file(), SealFlags::FUTURE_WRITE)
            .map_err(LinkError::io("seal a region that is only to be read"))?;
    }
    let message = announce::encode(exports);
    let files: Vec<BorrowedFd<'_>> = exports.iter().map(|export| export.region.file()).collect();
    send(stream, &message, &files, deadline)
}

/// Sends one message with its descriptors.
pub(super) fn send(
    stream: &UnixStream,
    message: &[u64],
    files: &[BorrowedFd<'_>],
    deadline: Instant,
) -> Result<(), LinkError> {
    let bytes: &[u8] = bytemuck::cast_slice(message);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(EXPORTS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(files));
        debug_assert!(fits, "there is room for a link's exports");
    }
    let giving = "hand over our regions";
    wait_until(stream, deadline).map_err(failed(giving))?;
    // The descriptors go with the first byte; what is left, if anything, follows without them.
    let sent = retry_on_intr(|| {
        rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
    })
    .map_err(failed(giving))?;
    (&*stream).write_all(&bytes[sent..]).map_err(failed(giving))
}

/// Receives the peer's announcement with its descriptors, one for each region. Whatever else came is closed.
pub(super) fn take(stream: &UnixStream, deadline: Instant) -> Result<(Vec<Extent>, Vec<OwnedFd>), LinkError> {
    let taking = "take the peer's regions";
    let mut message = [0u64; announce::WORDS];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut message);
    let mut files = Vec::new();
    let mut filled = 0;
    while filled < bytes.len() {
        wait_until(stream, deadline).map_err(failed(taking))?;
        // More descriptors than there is space for, the kernel does not give us.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(EXPORTS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            let mut rest = [IoSliceMut::new(&mut bytes[filled..])];
            rustix::net::recvmsg(stream, &mut rest, &mut control, RecvFlags::CMSG_CLOEXEC)
        })
        .map_err(failed(taking))?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(came) = message {
                files.extend(came);
            }
        }
        if received.bytes == 0 {
            return Err(LinkError::Closed { why: Why::PeerGone });
        }
        filled += received.bytes;
    }
    let extents = announce::decode(&message)?;
    if files.len() != extents.len() {
        return Err(Violation::Descriptors { announced: extents.len(), found: files.len() }.into());
    }
    Ok((extents, files))
}

/// Maps a region that was handed over, if that is safe.
fn map(extent: Extent, file: BorrowedFd<'_>) -> Result<Handed, LinkError> {
    let region = extent.id;
    // Only files that can be sealed have seals.
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| Violation::NotSealed { region })?;
    if !seals.contains(SIZE_SEALS) {
        return Err(Violation::NotSealed { region }.into());
    }
    // After the seals: from now on it stays what it is.
    let about = rustix::fs::fstat(file).map_err(LinkError::io("look at a region's size"))?;
    let (found, page) = (about.st_size as u64, (about.st_blksize as u64).max(1));
    let announced = (extent.words * WORD_BYTES) as u64;
    // In huge pages it ends with one.
    if found != announced && Some(found) != announced.checked_next_multiple_of(page) {
        return Err(Violation::Size { region, announced, found }.into());
    }
    let mapping = Mapping::new(file, extent.words, extent.access == Access::Write)
        .map_err(LinkError::io("map a region of the peer's"))?;
    Ok(Handed { extent, mapping })
}

/// Lets the next calls on the stream take until `deadline`.
fn wait_until(stream: &UnixStream, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left == Duration::ZERO {
        return Err(io::ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(left))?;
    stream.set_write_timeout(Some(left))
}

/// A failure of the stream: the peer is gone, or took too long, or the system refused.
fn failed<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> LinkError {
    let too_long = Why::Io(Arc::new(io::ErrorKind::TimedOut.into()));
    move |error| match Why::of_io(error.into(), too_long) {
        Why::Io(source) => LinkError::Io { doing, source },
        why => LinkError::Closed { why },
    }
}
