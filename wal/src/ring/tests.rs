use std::sync::atomic::AtomicBool;
use std::thread;

use headwater_protocol::Epoch;
use proptest::prelude::*;

use super::*;
use crate::record::Prepared;

const FIRST_WORD: usize = 3;
const RING_BYTES: u64 = RING_BYTES_MIN;

fn memory() -> Words {
    Arc::new((0..FIRST_WORD + RING_BYTES as usize / 8).map(|_| AtomicU64::new(0)).collect::<Vec<_>>())
}

/// Appends a record of the words `fill`, `fill + 1`, …; its header carries only its LSN.
fn append(ring: &Ring, body_words: usize, fill: u64) -> Vec<u64> {
    let mut header = [fill; HEADER_WORDS];
    header[LSN_WORD] = ring.appended().advance(((HEADER_WORDS + body_words) * 8) as u64).get();
    let body: Vec<u64> = (0..body_words as u64).map(|i| fill + i).collect();
    ring.append(&header, &body);
    [&header[..], &body].concat()
}

proptest! {
    /// The ring against a log that forgets nothing.
    #[test]
    fn it_holds_the_last_ring_of_bytes(
        start in 0..2000u64,
        records in proptest::collection::vec(0..200usize, 1..60),
        reads in proptest::collection::vec((any::<proptest::sample::Index>(), 1..512usize), 20),
    ) {
        let start = Lsn::new(start * 8);
        let ring = Ring::new(memory(), FIRST_WORD, RING_BYTES, start);
        let mut log: Vec<u64> = Vec::new();
        for (i, body_words) in records.into_iter().enumerate() {
            log.extend(append(&ring, body_words, 1000 * i as u64));
        }
        prop_assert_eq!(ring.appended(), start.advance(log.len() as u64 * 8));
        for (first, len) in reads {
            let first = first.index(log.len());
            let mut out = vec![0; len.min(log.len() - first)];
            let held = (log.len() - first) as u64 * 8 <= RING_BYTES;
            match ring.copy_out(start.advance(first as u64 * 8), &mut out) {
                Ok(()) => {
                    prop_assert!(held);
                    prop_assert_eq!(&out[..], &log[first..first + out.len()]);
                }
                Err(Overwritten) => prop_assert!(!held),
            }
        }
    }
}

#[test]
fn bytes_from_before_it_began_are_not_in_it() {
    let ring = Ring::new(memory(), FIRST_WORD, RING_BYTES, Lsn::new(800));
    append(&ring, 10, 1);
    assert_eq!(ring.copy_out(Lsn::new(792), &mut [0; 2]), Err(Overwritten));
    assert_eq!(ring.copy_out(Lsn::new(800), &mut [0; 2]), Ok(()));
}

#[test]
fn a_batch_ends_where_a_record_ends() {
    let ring = Ring::new(memory(), FIRST_WORD, RING_BYTES, Lsn::ZERO);
    let ends: Vec<Lsn> = [4, 14, 94]
        .map(|words| {
            append(&ring, words, 1);
            ring.appended()
        })
        .into();
    assert_eq!(ends, [80, 240, 1040].map(Lsn::new));
    assert_eq!(ring.record_end_within(Lsn::ZERO, 79), ends[0], "one record at least");
    assert_eq!(ring.record_end_within(Lsn::ZERO, 80), ends[0]);
    assert_eq!(ring.record_end_within(Lsn::ZERO, 239), ends[0]);
    assert_eq!(ring.record_end_within(Lsn::ZERO, 240), ends[1]);
    assert_eq!(ring.record_end_within(ends[0], 959), ends[1]);
    assert_eq!(ring.record_end_within(ends[0], 960), ends[2]);
    assert_eq!(ring.record_end_within(ends[2], 960), ends[2], "nothing is left");
}

/// Every word of a record is its own LSN, so that a reader sees at once what it must not be given (S5).
#[test]
fn a_copy_while_it_is_overwritten_is_whole_or_refused() {
    let ring = Arc::new(Ring::new(memory(), FIRST_WORD, RING_BYTES, Lsn::ZERO));
    let done = Arc::new(AtomicBool::new(false));
    let writer = thread::spawn({
        let (ring, done) = (ring.clone(), done.clone());
        move || {
            for i in 0..200_000u64 {
                let end = ring.appended().advance(8 * (HEADER_WORDS as u64 + i % 40));
                let words = (end.since(ring.appended()) / 8) as usize;
                ring.append(&[end.get(); HEADER_WORDS], &vec![end.get(); words - HEADER_WORDS]);
            }
            done.store(true, Ordering::Release);
        }
    });
    let (mut copied, mut refused) = (0, 0);
    while !done.load(Ordering::Acquire) {
        let appended = ring.appended();
        // The oldest bytes of the ring: about to be overwritten.
        let from = Lsn::new(appended.get().saturating_sub(RING_BYTES - 64));
        let mut out = vec![0; (appended.since(from) / 8) as usize];
        match ring.copy_out(from, &mut out) {
            Ok(()) => {
                copied += 1;
                for (i, end) in out.iter().enumerate() {
                    let at = from.get() + i as u64 * 8;
                    assert!(
                        at < *end && *end <= at + 8 * 46,
                        "the word at {at} is of the record that ends at {end}"
                    );
                }
            }
            Err(Overwritten) => refused += 1,
        }
    }
    writer.join().unwrap();
    assert!(copied + refused > 0);
}

#[test]
#[should_panic(expected = "does not fit")]
fn memory_that_is_too_small_is_refused() {
    Ring::new(memory(), FIRST_WORD + 1, RING_BYTES, Lsn::ZERO);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "a record ends where its header says")]
fn a_header_that_belongs_elsewhere_is_refused() {
    let ring = Ring::new(memory(), FIRST_WORD, RING_BYTES, Lsn::ZERO);
    let header = Prepared::close().header(Lsn::new(8), Epoch::new(1), Lsn::ZERO, 0);
    ring.append(&header.encode(), &[]);
}
