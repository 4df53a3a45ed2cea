//! What the two sides of a link tell each other over the control connection: the announcement, then for each region in it
//! where it is and the key that opens it, two words each.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::queue_pair::{Place, Registration};
use crate::announce;
use crate::error::{LinkError, Why};
use crate::export::{EXPORTS_MAX, Export, Extent};
use crate::memory::WORD_BYTES;

const WORDS: usize = announce::WORDS + 2 * EXPORTS_MAX;

/// A peer's region, as this side's NIC reaches it.
pub(super) struct Remote {
    pub(super) extent: Extent,
    pub(super) place: Place,
}

/// Tells the peer where `exports` are.
pub(super) fn give(
    stream: &TcpStream,
    exports: &[Export],
    registered: &[Registration],
    deadline: Instant,
) -> Result<(), LinkError> {
    let mut message = [0; WORDS];
    message[..announce::WORDS].copy_from_slice(&announce::encode(exports));
    for (words, registration) in message[announce::WORDS..].chunks_exact_mut(2).zip(registered) {
        let place = registration.remote();
        words.copy_from_slice(&[place.address, place.key.into()]);
    }
    until(deadline)
        .and_then(|left| stream.set_write_timeout(Some(left)))
        // So small that it fits into the socket's buffer.
        .and_then(|()| (&*stream).write_all(bytemuck::cast_slice(&message)))
        .map_err(failed("tell the peer of our regions"))
}

/// Hears from the peer where its exports are.
pub(super) fn take(stream: &TcpStream, deadline: Instant) -> Result<Vec<Remote>, LinkError> {
    let mut message = [0; WORDS];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut message);
    let mut filled = 0;
    while filled < bytes.len() {
        let taking = "hear of the peer's regions";
        let left = until(deadline).map_err(failed(taking))?;
        stream.set_read_timeout(Some(left)).map_err(failed(taking))?;
        match (&*stream).read(&mut bytes[filled..]) {
            Ok(0) => return Err(LinkError::Closed { why: Why::PeerGone }),
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(taking)(e)),
        }
    }
    let (announced, places) = message.split_at(announce::WORDS);
    let announced = announced.try_into().expect("split at its size");
    let extents = announce::decode(announced)?;
    let remotes = extents.into_iter().zip(places.chunks_exact(2)).map(|(extent, place)| {
        // Where the peer says its words are is its own business: its NIC refuses what it has not registered. But it must be
        // words, or they could not be read whole.
        let aligned = place[0].is_multiple_of(WORD_BYTES as u64);
        match u32::try_from(place[1]) {
            Ok(key) if aligned => Ok(Remote { extent, place: Place { address: place[0], key } }),
            _ => Err(crate::error::Violation::Extent { region: extent.id }.into()),
        }
    });
    remotes.collect()
}

fn until(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

/// A failure of the stream: the peer is gone, or took too long, or the system refused.
fn failed(doing: &'static str) -> impl FnOnce(io::Error) -> LinkError {
    let too_long = Why::Io(Arc::new(io::ErrorKind::TimedOut.into()));
    move |error| match Why::of_io(error, too_long) {
        Why::Io(source) => LinkError::Io { doing, source },
        why => LinkError::Closed { why },
    }
}
