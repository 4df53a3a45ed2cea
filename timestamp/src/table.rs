use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headwater_protocol::{Epoch, Lsn, Seqno};

use crate::layout::Layout;

/// The memory of a timestamp table, which ROs read from afar.
pub type Words = Arc<dyn AsRef<[AtomicU64]> + Send + Sync>;

/// The timestamp table as the RW writes it.
///
/// - A word only grows (R4): stamping keeps the larger LSN, whoever stamps and in whatever order.
/// - The word of a shard or page is at least the LSN of every change that was stamped for it.
/// - Every word is at least the recovered LSN (R5).
///
/// Stamps are `Release`. What a reader relies on is only that a fetch sent after a change could be seen returns that
/// change's stamp or a later one; each word is fetched for itself, and no conclusion is drawn from one word about
/// another. A reader that knows of the change was told by something that the RW did after stamping (it published the
/// flushed LSN, or answered a client: W3), and `Release` keeps the stamp before that:
///
/// ```text
/// RW      stamp shard 70 | publish flushed 70 |
/// RO 1                                         | apply up to 70, serve it to a client |
/// RO 2                                                                                 | that client asks, fetch: 70
/// ```
pub struct Table {
    words: Words,
    layout: Layout,
}

impl Table {
    /// Sets up the table for an epoch whose log was recovered up to `recovered`, before any RO reads it: what was
    /// stamped before is not known any more, so every word says `recovered` (R5).
    ///
    /// Panics if the layout is invalid or `words` are fewer than it needs: the memory is allocated by this layout.
    pub fn new(words: Words, layout: Layout, epoch: Epoch, recovered: Lsn) -> Table {
        layout.validate().expect("a layout is checked where it is read");
        let table = Table { words, layout };
        let all = &(*table.words).as_ref()[layout.global()..layout.words()];
        for word in all {
            word.fetch_max(recovered.get(), Ordering::Release);
        }
        // Last, so that who finds the epoch finds its timestamps.
        table.word(layout.epoch()).store(epoch.get(), Ordering::Release);
        table
    }

    /// Stamps the page and the shard of an append whose record ends at `lsn`: when it is durable, before anybody can
    /// see it (W3).
    pub fn stamp_append(&self, shard: &str, seqno: Seqno, lsn: Lsn) {
        self.stamp(self.layout.page(shard, self.layout.page_of(seqno)), lsn);
        self.stamp(self.layout.shard(shard), lsn);
    }

    /// Stamps the pages of the removed seqnos and the shard of a truncate whose record ends at `lsn`: when it is
    /// durable, before anybody can see it (W3). However many seqnos were removed, each word is stamped once.
    pub fn stamp_truncate(&self, shard: &str, removed: Range<Seqno>, lsn: Lsn) {
        if let Some(last) = removed.end.get().checked_sub(1).filter(|&last| last >= removed.start.get()) {
            let last = Seqno::new(last).expect("less than a seqno");
            let pages = self.layout.page_of(removed.start)..=self.layout.page_of(last);
            self.layout.page_words(shard, pages).for_each(|word| self.stamp(word, lsn));
        }
        self.stamp(self.layout.shard(shard), lsn);
    }

    /// Stamps the log as a whole, once a batch: `lsn` is that of the batch's last change, all of which are stamped
    /// (W3).
    pub fn stamp_global(&self, lsn: Lsn) {
        self.stamp(self.layout.global(), lsn);
    }

    /// The global timestamp.
    pub fn global(&self) -> Lsn {
        Lsn::new(self.word(self.layout.global()).load(Ordering::Acquire))
    }

    fn stamp(&self, word: usize, lsn: Lsn) {
        self.word(word).fetch_max(lsn.get(), Ordering::Release);
    }

    fn word(&self, word: usize) -> &AtomicU64 {
        &(*self.words).as_ref()[word]
    }
}
