//! Is a history linearizable?
//!
//! In general that is a search over orders. Here the log gives the order away: every compare-and-set that committed has its seqno,
//! and a shard's states form a chain in which neither end ever moves back. So every answer bounds the place in that chain
//! at which its call took effect, and a history is linearizable if the places agree with the clock. For calls `a`, `b`
//! of a shard, `a` answered before `b` was sent:
//!
//! - `b` took effect in no earlier state than `a` did ([`Rule::Stale`]);
//! - nobody saw an entry, or its removal, that was not yet asked for ([`Rule::Unwritten`]);
//! - an entry was written once, by one call, with the bytes that everybody reads ([`Rule::TwoWriters`], [`Rule::Bytes`]);
//! - states in which both ends were seen can be put in one order ([`Rule::NoOrder`]).
//!
//! Pairs are enough: "answered before the other was sent" is an interval order, so that a cycle through more calls
//! contains one through two. A write without an answer may have taken effect at any time after it was sent, once, or never.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use headwater_client::Cas;
use headwater_protocol::{Entry, Lsn, Seqno, ShardName};

use super::{Cut, Event, Outcome, Sees, What};

/// What must hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Nothing is seen that is older than what an earlier answer, of any node, was about.
    Stale,
    /// Nothing is seen that nobody had asked for yet, or that was refused.
    Unwritten,
    /// A seqno is given to one write.
    TwoWriters,
    /// An entry has the bytes that were written.
    Bytes,
    /// Entries of a scan follow one another, from no earlier than was asked.
    Interval,
    /// An answer agrees with its own question.
    Answer,
    /// An entry is removed once.
    RemovedTwice,
    /// All states that were seen lie in one order.
    NoOrder,
    /// Positions in the log are given once, in the order of seqnos, and a read's is not before what it shows.
    Lsn,
}

/// A rule broken, where, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// What does not hold.
    pub rule: Rule,
    /// The shard.
    pub shard: ShardName,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in {}: {}", self.rule, self.shard, self.what)
    }
}

/// What a history holds: so that a test can say that it tested something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Compare-and-sets that committed.
    pub committed: usize,
    /// Writes refused.
    pub refused: usize,
    /// Writes of which nobody knows.
    pub unknown: usize,
    /// Strong reads answered.
    pub strong_reads: usize,
    /// Other reads answered.
    pub weak_reads: usize,
}

/// Entries that were ever written: 0 for a shard that never was. A head's rank is its seqno and one.
type Rank = u64;

fn rank(head: Option<Seqno>) -> Rank {
    head.map_or(0, |head| head.get() + 1)
}

/// What one answer says of the state in which its call took effect. `head` bounds the rank of the head, `lo` the
/// lowest seqno: before the call it was no more than `at_most`, after it no less than `at_least`.
struct Seen<'a> {
    event: &'a Event,
    linearizable: bool,
    head: Bounds,
    lo: Bounds,
}

#[derive(Clone, Copy)]
struct Bounds {
    at_least: u64,
    at_most: u64,
}

impl Bounds {
    const ANY: Bounds = Bounds { at_least: 0, at_most: u64::MAX };

    fn exactly(value: u64) -> Bounds {
        Bounds { at_least: value, at_most: value }
    }

    fn from(at_least: u64) -> Bounds {
        Bounds { at_least, ..Bounds::ANY }
    }

    fn to(at_most: u64) -> Bounds {
        Bounds { at_most, ..Bounds::ANY }
    }

    fn is_exact(self) -> bool {
        self.at_least == self.at_most
    }
}

/// Judges a history, shard by shard.
pub(super) fn check(events: &[Event]) -> (Counts, Vec<Violation>) {
    let mut counts = Counts::default();
    let mut shards: BTreeMap<&ShardName, Vec<&Event>> = BTreeMap::new();
    for event in events {
        shards.entry(&event.shard).or_default().push(event);
        match &event.what {
            What::Append { outcome: Outcome::Answered(Cas::Committed(..)), .. } => counts.committed += 1,
            What::Append { outcome: Outcome::Refused, .. }
            | What::Truncate { outcome: Outcome::Refused, .. } => counts.refused += 1,
            What::Append { outcome: Outcome::Unknown, .. }
            | What::Truncate { outcome: Outcome::Unknown, .. } => counts.unknown += 1,
            What::Append { .. } | What::Truncate { .. } => {}
            What::Read { strong: true, .. } => counts.strong_reads += 1,
            What::Read { strong: false, .. } => counts.weak_reads += 1,
        }
    }
    let mut violations = Vec::new();
    let mut lsns: HashMap<Lsn, &ShardName> = HashMap::new();
    for (shard, events) in shards {
        let mut shard = Shard { shard, events, writers: BTreeMap::new(), violations: &mut violations };
        shard.check(&mut lsns);
    }
    (counts, violations)
}

/// The write that made an entry.
struct Writer<'a> {
    began: Duration,
    data: &'a Bytes,
    lsn: Option<Lsn>,
}

struct Shard<'a, 'v> {
    shard: &'a ShardName,
    events: Vec<&'a Event>,
    writers: BTreeMap<Seqno, Writer<'a>>,
    violations: &'v mut Vec<Violation>,
}

impl<'a> Shard<'a, '_> {
    fn broken(&mut self, rule: Rule, what: String) {
        self.violations.push(Violation { rule, shard: self.shard.clone(), what });
    }

    fn check(&mut self, lsns: &mut HashMap<Lsn, &'a ShardName>) {
        self.find_writers(lsns);
        let mut seen = Vec::new();
        for event in self.events.clone() {
            seen.extend(self.see(event));
        }
        self.check_asked_for(&seen);
        self.check_clock(&seen);
        self.check_order(&seen);
        self.check_removed_once();
    }

    /// Who wrote what: by the answers; and where there was none, by what was read.
    fn find_writers(&mut self, lsns: &mut HashMap<Lsn, &'a ShardName>) {
        for event in self.events.clone() {
            let What::Append { data, outcome: Outcome::Answered(Cas::Committed(seqno, lsn)), .. } =
                &event.what
            else {
                continue;
            };
            let writer = Writer { began: event.began, data, lsn: Some(*lsn) };
            if self.writers.insert(*seqno, writer).is_some() {
                self.broken(Rule::TwoWriters, format!("two writes were told that they are {seqno}"));
            }
            if let Some(other) = lsns.insert(*lsn, self.shard) {
                self.broken(Rule::Lsn, format!("LSN {lsn} was given before, in {other}"));
            }
        }
        let mut unanswered: HashMap<Option<Seqno>, Vec<(Duration, &'a Bytes)>> = HashMap::new();
        for event in &self.events {
            if let What::Append { expected, data, outcome: Outcome::Unknown } = &event.what {
                unanswered.entry(*expected).or_default().push((event.began, data));
            }
        }
        let mut top = 0;
        for event in self.events.clone() {
            for entry in entries(event) {
                let candidates = unanswered.get(&before(entry.seqno)).into_iter().flatten();
                let writer = candidates.clone().find(|(_, data)| **data == entry.data);
                if let Some(&(began, data)) = writer {
                    self.writers.entry(entry.seqno).or_insert(Writer { began, data, lsn: None });
                }
                top = top.max(rank(Some(entry.seqno)));
            }
        }
        // What lies below a committed entry was written too; where nobody read it, the first that may have done it did.
        top = top.max(rank(self.writers.last_key_value().map(|(seqno, _)| *seqno)));
        for seqno in (0..top).filter_map(|seqno| Seqno::new(seqno).ok()) {
            let first = unanswered.get(&before(seqno)).into_iter().flatten().min_by_key(|(began, _)| *began);
            if let Some(&(began, data)) = first {
                self.writers.entry(seqno).or_insert(Writer { began, data, lsn: None });
            }
        }
        let known: Vec<_> = self.writers.iter().filter_map(|(seqno, w)| Some((*seqno, w.lsn?))).collect();
        for pair in known.windows(2).filter(|pair| pair[0].1 >= pair[1].1) {
            let what = format!("{} ends at LSN {}, {} at {}", pair[0].0, pair[0].1, pair[1].0, pair[1].1);
            self.broken(Rule::Lsn, what);
        }
    }

    /// What an event tells of the shard, once it is sound in itself.
    fn see(&mut self, event: &'a Event) -> Option<Seen<'a>> {
        let (head, lo, linearizable) = match &event.what {
            What::Append { outcome: Outcome::Answered(Cas::Committed(seqno, _)), expected, .. } => {
                if before(*seqno) != *expected {
                    self.broken(Rule::Answer, format!("{seqno} was committed after {expected:?}"));
                }
                let head = Bounds { at_most: seqno.get(), at_least: seqno.get() + 1 };
                (head, Bounds::ANY, true)
            }
            What::Append { outcome: Outcome::Answered(Cas::Mismatch { head, .. }), expected, .. } => {
                if head == expected {
                    self.broken(Rule::Answer, format!("{head:?} was expected, and is a mismatch"));
                }
                (Bounds::exactly(rank(*head)), Bounds::ANY, true)
            }
            What::Truncate { outcome: Outcome::Answered(Cut::Removed(removed)), cut } => {
                let at_most = match removed {
                    0 => u64::MAX,
                    removed => cut.get().saturating_sub(*removed),
                };
                // Never the head: so there was one at or above the cut.
                (Bounds::from(cut.get() + 1), Bounds { at_least: cut.get(), at_most }, true)
            }
            What::Truncate { outcome: Outcome::Answered(Cut::AboveHead(head)), cut } => {
                if cut <= head {
                    self.broken(Rule::Answer, format!("{cut} was said to be above {head}"));
                }
                (Bounds::exactly(rank(Some(*head))), Bounds::ANY, true)
            }
            What::Append { outcome: Outcome::Refused | Outcome::Unknown, .. }
            | What::Truncate { outcome: Outcome::Refused | Outcome::Unknown, .. } => return None,
            What::Read { strong, sees, lsn } => {
                let (head, lo) = match sees {
                    Sees::Head(entry) => {
                        (Bounds::exactly(rank(entry.as_ref().map(|entry| entry.seqno))), Bounds::ANY)
                    }
                    Sees::Scan { from, entries, more } => self.see_scan(*from, entries, *more),
                };
                for entry in entries(event) {
                    self.see_entry(entry, *lsn);
                }
                (head, lo, *strong)
            }
        };
        Some(Seen { event, linearizable, head, lo })
    }

    fn see_scan(&mut self, from: Seqno, entries: &[Entry], more: bool) -> (Bounds, Bounds) {
        if entries.windows(2).any(|pair| pair[0].seqno.next() != Some(pair[1].seqno)) {
            self.broken(Rule::Interval, format!("a scan from {from} has a gap"));
        }
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return (Bounds::to(from.get()), Bounds::ANY);
        };
        if first.seqno < from {
            self.broken(Rule::Interval, format!("a scan from {from} begins at {}", first.seqno));
        }
        let lo = if first.seqno > from { Bounds::exactly(first.seqno.get()) } else { Bounds::to(from.get()) };
        let end = rank(Some(last.seqno));
        (if more { Bounds::from(end + 1) } else { Bounds::exactly(end) }, lo)
    }

    fn see_entry(&mut self, entry: &Entry, reflected: Lsn) {
        let Some(writer) = self.writers.get(&entry.seqno) else {
            self.broken(Rule::Unwritten, format!("nobody wrote {}", entry.seqno));
            return;
        };
        let (differs, lsn) = (*writer.data != entry.data, writer.lsn);
        if differs {
            self.broken(Rule::Bytes, format!("{} has other bytes than were written", entry.seqno));
        }
        if lsn.is_some_and(|lsn| lsn > reflected) {
            let what = format!("an answer of LSN {reflected} shows {} of {lsn:?}", entry.seqno);
            self.broken(Rule::Lsn, what);
        }
    }

    /// Nobody saw what was not yet asked for.
    fn check_asked_for(&mut self, seen: &[Seen<'_>]) {
        // By rank: when the last of the writes up to it was asked for; none where one of them never was.
        let mut asked = vec![Some(Duration::ZERO)];
        let top = seen.iter().map(|seen| seen.head.at_least).max().unwrap_or(0);
        for seqno in (0..top).filter_map(|seqno| Seqno::new(seqno).ok()) {
            let writer = self.writers.get(&seqno).map(|writer| writer.began);
            let before = asked.last().copied().flatten();
            asked.push(before.zip(writer).map(|(before, began)| before.max(began)));
        }
        let mut cuts: Vec<(u64, Duration)> = Vec::new();
        for event in &self.events {
            if let What::Truncate { cut, outcome: Outcome::Answered(Cut::Removed(1..)) | Outcome::Unknown } =
                &event.what
            {
                cuts.push((cut.get(), event.began));
            }
        }
        for Seen { event, head, lo, .. } in seen {
            let asked = asked[head.at_least as usize];
            if asked.is_none_or(|asked| asked > event.ended) {
                let what = format!("{} entries at {:?}, asked for at {asked:?}", head.at_least, event.ended);
                self.broken(Rule::Unwritten, what);
            }
            let is_cut = cuts.iter().any(|(cut, began)| *cut >= lo.at_least && *began <= event.ended);
            if lo.at_least > 0 && !is_cut {
                let what = format!("nobody cut at {} by {:?}", lo.at_least, event.ended);
                self.broken(Rule::Unwritten, what);
            }
        }
    }

    /// An answer is about no earlier state than any answer before it was asked for.
    fn check_clock(&mut self, seen: &[Seen<'_>]) {
        let mut by_end: Vec<_> = seen.iter().filter(|seen| seen.linearizable).collect();
        let mut by_beginning = by_end.clone();
        by_end.sort_by_key(|seen| seen.event.ended);
        by_beginning.sort_by_key(|seen| seen.event.began);
        let mut earlier = by_end.into_iter().peekable();
        let (mut head, mut lo) = (0, 0);
        for seen in by_beginning {
            while let Some(ended) = earlier.next_if(|other| other.event.ended < seen.event.began) {
                head = head.max(ended.head.at_least);
                lo = lo.max(ended.lo.at_least);
            }
            let Event { began, ended, .. } = seen.event;
            if seen.head.at_most < head {
                let what = format!(
                    "asked at {began:?}, answered at {ended:?}: {} entries; {head} were known before",
                    seen.head.at_most
                );
                self.broken(Rule::Stale, what);
            }
            if seen.lo.at_most < lo {
                let what = format!(
                    "asked at {began:?}, answered at {ended:?}: begins at {}; {lo} was known before",
                    seen.lo.at_most
                );
                self.broken(Rule::Stale, what);
            }
        }
    }

    /// Of two states the one with the larger head does not begin earlier.
    fn check_order(&mut self, seen: &[Seen<'_>]) {
        let whole = seen.iter().filter(|seen| seen.head.is_exact() && seen.lo.is_exact());
        let mut states: Vec<_> = whole.map(|seen| (seen.head.at_least, seen.lo.at_least)).collect();
        states.sort_unstable();
        for pair in states.windows(2) {
            let ((_, before), (head, lo)) = (pair[0], pair[1]);
            if before > lo {
                self.broken(Rule::NoOrder, format!("{head} entries from {lo}, fewer from {before}"));
            }
        }
    }

    fn check_removed_once(&mut self) {
        let mut removed: Vec<(u64, u64)> = Vec::new();
        for event in &self.events {
            if let What::Truncate { outcome: Outcome::Answered(Cut::Removed(count)), cut } = &event.what
                && *count > 0
            {
                removed.push((cut.get().saturating_sub(*count), cut.get()));
            }
        }
        removed.sort_unstable();
        for pair in removed.windows(2).filter(|pair| pair[0].1 > pair[1].0) {
            self.broken(Rule::RemovedTwice, format!("{:?} and {:?}", pair[0], pair[1]));
        }
    }
}

/// The seqno before, or none before the first.
fn before(seqno: Seqno) -> Option<Seqno> {
    seqno.get().checked_sub(1).and_then(|before| Seqno::new(before).ok())
}

/// The entries that an event shows.
fn entries(event: &Event) -> &[Entry] {
    match &event.what {
        What::Read { sees: Sees::Head(entry), .. } => entry.as_slice(),
        What::Read { sees: Sees::Scan { entries, .. }, .. } => entries,
        What::Append { .. } | What::Truncate { .. } => &[],
    }
}
