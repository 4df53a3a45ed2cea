use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use headwater_protocol::response::Response;
use headwater_protocol::{Seqno, ShardName};
use headwater_timestamp::Layout;
use headwater_wal::{Wal, WalOptions, Words, spawn_flusher};

use super::*;

const COMMITS: u64 = 3000;

fn words(count: usize) -> Words {
    let words: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(0)).collect();
    Arc::new(words)
}

/// Whoever sees a write anywhere finds it at every earlier step of W3: it looks at the steps from the last to the first
/// while writes go through, and never finds a later one ahead of an earlier one.
#[test]
fn w3_stamp_visible_publish_answer() {
    let dir = tempfile::tempdir().unwrap();
    let options = WalOptions {
        dir: dir.path().into(),
        cluster: "test".into(),
        segment_bytes: 64 << 10,
        lease: Duration::ZERO,
    };
    let ring_bytes = 64 << 10;
    let (wal, appender) =
        Wal::open(options, words(ring_bytes as usize / 8), 0, ring_bytes, &mut |_, _| Ok(())).unwrap();
    let layout = Layout { shard_slots: 8, page_slots: 8, page_entries: 64 };
    let table_words = words(layout.words());
    let log = Arc::new(ShardLog::new());
    let commit = Arc::new(Commit::new(
        Arc::new(Writer::new(log.clone(), appender, 1000, 1000)),
        Table::new(table_words.clone(), layout, wal.epoch(), wal.recovered()),
        log.clone(),
        Arc::new(Replicas::default()),
        wal.recovered(),
    ));
    let flusher = {
        let commit = commit.clone();
        let flushed = move |lsn| assert!(commit.flushed(lsn).is_continue());
        spawn_flusher(wal.clone(), || {}, flushed, |error| panic!("{error}")).unwrap()
    };

    let done = Arc::new(AtomicBool::new(false));
    let observer = {
        let (commit, log, wal, done) = (commit.clone(), log.clone(), wal.clone(), done.clone());
        std::thread::spawn(move || {
            let word = |n: usize| Lsn::new((*table_words).as_ref()[n].load(Ordering::SeqCst));
            let mut looks = 0;
            while !done.load(Ordering::SeqCst) {
                let answered = commit.visible().get();
                let published = commit.published();
                let seen = log.bounds("a");
                let shard = word(layout.shard("a"));
                let flushed = wal.flushed();
                assert!(answered <= published, "answered {answered}, published only {published}");
                if let Some(seen) = seen {
                    let page = word(layout.page("a", layout.page_of(seen.head)));
                    let global = word(layout.global());
                    assert!(seen.lsn <= shard, "visible at {}, the shard's stamp is {shard}", seen.lsn);
                    assert!(seen.lsn <= page, "visible at {}, the page's stamp is {page}", seen.lsn);
                    assert!(seen.lsn <= global, "visible at {}, the global stamp is {global}", seen.lsn);
                    assert!(seen.lsn <= flushed, "visible at {}, flushed is {flushed}", seen.lsn);
                }
                let published = commit.published();
                let seen = log.bounds("a").map_or(Lsn::ZERO, |seen| seen.lsn);
                let recovered = wal.recovered();
                assert!(published == recovered || seen >= published, "published {published}, visible {seen}");
                looks += 1;
            }
            looks
        })
    };
    for n in 0..COMMITS {
        let expected = n.checked_sub(1).map(|n| Seqno::new(n).unwrap());
        let shard = ShardName::new("a").unwrap();
        let decided = commit.writer.compare_and_set(shard, expected, Bytes::from_static(b"x"));
        assert!(matches!(decided.response, Response::Committed { .. }), "{:?}", decided.response);
        if n % 8 == 0 {
            while commit.visible().get() < decided.after {
                std::thread::yield_now();
            }
        }
    }
    flusher.stop();
    done.store(true, Ordering::SeqCst);
    assert!(observer.join().unwrap() > 1000, "too few looks to mean anything");
    assert_eq!(log.head("a").unwrap().0.seqno.get(), COMMITS - 1);
    assert_eq!(commit.visible().get(), wal.appended());
}
