use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::thread;

use rustix::fs::{MemfdFlags, SealFlags};

use super::*;
use crate::announce;
use crate::export::Access;
use crate::memory::{Mapping, WORD_BYTES};
use crate::region::{Region, SIZE_SEALS};

const TIMEOUT: Duration = Duration::from_secs(30);
const WORDS: usize = 64;

fn export(id: RegionId, access: Access) -> Export {
    Export { id, region: Region::create("test", WORDS).unwrap(), access }
}

fn soon() -> Instant {
    Instant::now() + TIMEOUT
}

/// What a link says to a peer that hands over `message` and `files`.
fn refused(message: &[u64], files: &[&dyn AsFd]) -> LinkError {
    let (near, far) = UnixStream::pair().unwrap();
    let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
    handover::send(&far, message, &files, soon()).unwrap();
    link(near, vec![], TIMEOUT).err().expect("nobody takes this")
}

fn memfd(bytes: u64, seals: SealFlags) -> std::os::fd::OwnedFd {
    let file = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

const BYTES: u64 = (WORDS * WORD_BYTES) as u64;

#[test]
fn memory_that_could_vanish_is_not_mapped() {
    let message = announce::encode(&[export(1, Access::Write)]);
    for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW] {
        let error = refused(&message, &[&memfd(BYTES, seals)]);
        assert!(matches!(error, LinkError::Refused(Violation::NotSealed { region: 1 })), "{error}");
    }
    let on_disk = tempfile::tempfile().unwrap();
    on_disk.set_len(BYTES).unwrap();
    let error = refused(&message, &[&on_disk]);
    assert!(matches!(error, LinkError::Refused(Violation::NotSealed { region: 1 })), "{error}");
}

#[test]
fn memory_of_another_size_is_not_mapped() {
    let message = announce::encode(&[export(1, Access::Write)]);
    for bytes in [0, BYTES - 1, BYTES + 1] {
        let error = refused(&message, &[&memfd(bytes, SIZE_SEALS)]);
        assert!(matches!(error, LinkError::Refused(Violation::Size { region: 1, .. })), "{error}");
    }
}

#[test]
fn descriptors_that_do_not_fit_the_announcement_are_refused() {
    let message = announce::encode(&[export(1, Access::Write)]);
    let file = memfd(BYTES, SIZE_SEALS);
    let too_few = refused(&message, &[]);
    assert!(matches!(too_few, LinkError::Refused(Violation::Descriptors { announced: 1, found: 0 })));
    let too_many = refused(&message, &[&file, &file, &file]);
    assert!(matches!(too_many, LinkError::Refused(Violation::Descriptors { announced: 1, found: 3 })));
    let mut other = message;
    other[0] = 0;
    assert!(matches!(refused(&other, &[&file]), LinkError::Refused(Violation::Magic { found: 0 })));
}

#[test]
fn a_region_to_be_read_cannot_be_written_by_who_holds_its_descriptor() {
    let table = export(1, Access::Read);
    let (near, far) = UnixStream::pair().unwrap();
    handover::give(&near, std::slice::from_ref(&table), soon()).unwrap();
    let (_, files) = handover::take(&far, soon()).unwrap();
    let refusal = Mapping::new(files[0].as_fd(), WORDS, true).err().unwrap();
    assert_eq!(refusal.kind(), io::ErrorKind::PermissionDenied);
    assert!(rustix::io::pwrite(&files[0], &[1], 0).is_err());
    // Nor by way of a new descriptor for the same memory.
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", files[0].as_raw_fd());
    let reopened = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    assert!(Mapping::new(reopened.as_fd(), WORDS, true).is_err());
    // While its owner writes and the peer reads.
    let mapping = Mapping::new(files[0].as_fd(), WORDS, false).unwrap();
    table.region.words()[9].store(5, Ordering::SeqCst);
    assert_eq!(mapping.load(9), 5);
}

#[test]
#[should_panic(expected = "read-only")]
fn read_only_words_are_not_given_out_for_writing() {
    let table = export(1, Access::Read);
    Mapping::new(table.region.file(), WORDS, false).unwrap().words();
}

#[test]
fn a_region_once_read_only_is_not_exported_for_writing_later() {
    let mut export = export(1, Access::Read);
    let (near, _far) = UnixStream::pair().unwrap();
    handover::give(&near, std::slice::from_ref(&export), soon()).unwrap();
    export.access = Access::Write;
    let (near, far) = UnixStream::pair().unwrap();
    let owner = thread::spawn(move || link(near, vec![export], TIMEOUT).err().unwrap());
    let taker = link(far, vec![], TIMEOUT).err().unwrap();
    assert!(matches!(taker, LinkError::Io { .. }), "{taker}");
    let owner = owner.join().unwrap();
    assert!(matches!(owner, LinkError::Closed { why: Why::PeerGone }), "{owner}");
}

#[test]
fn a_peer_that_hands_over_nothing_is_not_waited_for() {
    let (near, _far) = UnixStream::pair().unwrap();
    let error = link(near, vec![export(1, Access::Write)], Duration::from_millis(20)).err().unwrap();
    let LinkError::Io { source, .. } = error else { panic!("{error}") };
    assert_eq!(source.kind(), io::ErrorKind::TimedOut);
}

#[test]
fn a_peer_that_dies_in_the_middle_is_no_peer() {
    let message = announce::encode(&[]);
    for sent in [0, 1, announce::WORDS] {
        let (near, far) = UnixStream::pair().unwrap();
        if sent > 0 {
            handover::send(&far, &message[..sent], &[], soon()).unwrap();
        }
        far.shutdown(Shutdown::Write).unwrap();
        let error = link(near, vec![], TIMEOUT).err().unwrap();
        assert!(matches!(error, LinkError::Closed { why: Why::PeerGone }), "{error}");
    }
}

#[test]
fn a_peer_that_says_more_than_it_should_loses_the_link() {
    use std::io::Write;
    let (near, mut far) = UnixStream::pair().unwrap();
    handover::send(&far, &announce::encode(&[]), &[], soon()).unwrap();
    far.write_all(&[1]).unwrap();
    let link = link(near, vec![], TIMEOUT).unwrap();
    assert!(!link.closed());
    far.write_all(&[1]).unwrap();
    let start = Instant::now();
    while !link.closed() {
        assert!(start.elapsed() < TIMEOUT);
        thread::yield_now();
    }
    assert!(matches!(link.ring(1), Err(LinkError::Closed { why: Why::Violation(Violation::Unasked) })));
}

#[test]
fn the_boot_id_names_this_boot() {
    assert_eq!(boot_id().unwrap().len(), 36);
    assert_eq!(boot_id().unwrap(), boot_id().unwrap());
}
