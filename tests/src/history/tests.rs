//! Histories that are right, and wrong in every way that there is a rule for.

use super::*;

fn shard() -> ShardName {
    ShardName::new("s").unwrap()
}

fn seqno(number: u64) -> Seqno {
    Seqno::new(number).unwrap()
}

fn data(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn entry(number: u64) -> Entry {
    Entry { seqno: seqno(number), data: data(&format!("v{number}")) }
}

/// What happened from one second to another.
fn event(began: u64, ended: u64, what: What) -> Event {
    Event { began: Duration::from_secs(began), ended: Duration::from_secs(ended), shard: shard(), what }
}

fn expected_for(number: u64) -> Option<Seqno> {
    number.checked_sub(1).map(seqno)
}

/// A write of `v<number>` that was told it is `number`, at LSN 10, 20, 30, ….
fn wrote(began: u64, ended: u64, number: u64) -> Event {
    let outcome = Outcome::Answered(Cas::Committed(seqno(number), Lsn::new(10 * (number + 1))));
    event(
        began,
        ended,
        What::Append { expected: expected_for(number), data: data(&format!("v{number}")), outcome },
    )
}

fn write_without_answer(began: u64, number: u64) -> Event {
    let what = What::Append {
        expected: expected_for(number),
        data: data(&format!("v{number}")),
        outcome: Outcome::Unknown,
    };
    event(began, began + 1, what)
}

fn refused(began: u64, number: u64) -> Event {
    let what = What::Append {
        expected: expected_for(number),
        data: data(&format!("v{number}")),
        outcome: Outcome::Refused,
    };
    event(began, began + 1, what)
}

fn mismatched(began: u64, ended: u64, expected: Option<u64>, head: Option<u64>) -> Event {
    let outcome = Outcome::Answered(Cas::Mismatch { head: head.map(seqno), lsn: Lsn::ZERO });
    event(began, ended, What::Append { expected: expected.map(seqno), data: data("lost"), outcome })
}

fn cut(began: u64, ended: u64, at: u64, removed: u64) -> Event {
    let outcome = Outcome::Answered(Cut::Removed(removed));
    event(began, ended, What::Truncate { cut: seqno(at), outcome })
}

fn read_head(began: u64, ended: u64, head: Option<u64>) -> Event {
    read(began, ended, true, Sees::Head(head.map(entry)))
}

fn scanned(began: u64, ended: u64, from: u64, seen: std::ops::Range<u64>, more: bool) -> Event {
    let entries = seen.map(entry).collect();
    read(began, ended, true, Sees::Scan { from: seqno(from), entries, more })
}

fn read(began: u64, ended: u64, strong: bool, sees: Sees) -> Event {
    event(began, ended, What::Read { strong, sees, lsn: Lsn::new(1000) })
}

fn rules(events: Vec<Event>) -> Vec<Rule> {
    check::check(&events).1.into_iter().map(|violation| violation.rule).collect()
}

#[track_caller]
fn right(events: Vec<Event>) {
    let (counts, violations) = check::check(&events);
    assert!(violations.is_empty(), "{counts:?}: {violations:?}");
}

#[track_caller]
fn wrong(rule: Rule, events: Vec<Event>) {
    let rules = rules(events);
    assert!(rules.contains(&rule), "{rules:?}");
}

#[test]
fn an_orderly_history_is_right() {
    right(vec![
        read_head(0, 1, None),
        wrote(2, 4, 0),
        mismatched(3, 5, None, Some(0)),
        wrote(5, 9, 1),
        read_head(6, 7, Some(1)),
        scanned(8, 9, 0, 0..2, false),
        wrote(10, 11, 2),
        cut(12, 14, 2, 2),
        scanned(13, 14, 0, 0..3, false),
        scanned(15, 16, 0, 2..3, false),
        cut(17, 18, 1, 0),
        scanned(17, 18, 3, 3..3, false),
    ]);
}

#[test]
fn what_overlaps_may_be_in_either_order() {
    right(vec![wrote(0, 9, 0), read_head(1, 2, Some(0)), read_head(3, 4, Some(0)), wrote(3, 9, 1)]);
    right(vec![wrote(0, 9, 0), read_head(1, 8, None), read_head(2, 9, Some(0))]);
}

#[test]
fn a_read_after_an_acknowledgement_must_show_it() {
    wrong(Rule::Stale, vec![wrote(0, 1, 0), wrote(2, 3, 1), read_head(4, 5, Some(0))]);
    wrong(Rule::Stale, vec![wrote(0, 1, 0), wrote(2, 3, 1), scanned(4, 5, 0, 0..1, false)]);
    wrong(Rule::Stale, vec![wrote(0, 1, 0), read_head(2, 3, None)]);
    wrong(Rule::Stale, vec![wrote(0, 1, 0), wrote(2, 3, 1), scanned(4, 5, 1, 1..1, false)]);
}

#[test]
fn a_read_after_a_read_on_another_node_must_not_go_back() {
    let written = || vec![wrote(0, 1, 0), wrote(2, 100, 1)];
    let later = |second: Event| written().into_iter().chain([read_head(3, 4, Some(1)), second]).collect();
    wrong(Rule::Stale, later(read_head(5, 6, Some(0))));
    right(later(read_head(4, 6, Some(0))));
    right(later(read(5, 6, false, Sees::Head(Some(entry(0))))));
}

#[test]
fn a_write_must_not_rest_on_what_was_known_to_be_over() {
    wrong(
        Rule::Stale,
        vec![wrote(0, 1, 0), wrote(2, 90, 1), read_head(3, 4, Some(1)), {
            let mut second = wrote(5, 6, 1);
            let What::Append { data: bytes, .. } = &mut second.what else { unreachable!() };
            *bytes = data("other");
            second
        }],
    );
    wrong(Rule::Stale, vec![wrote(0, 1, 0), wrote(2, 3, 1), mismatched(4, 5, None, Some(0))]);
}

#[test]
fn nobody_may_see_what_was_not_asked_for() {
    wrong(Rule::Unwritten, vec![wrote(0, 1, 0), read_head(2, 3, Some(1))]);
    wrong(Rule::Unwritten, vec![wrote(0, 1, 0), read_head(2, 3, Some(1)), wrote(4, 5, 1)]);
    wrong(Rule::Unwritten, vec![wrote(0, 1, 0), refused(2, 1), read_head(4, 5, Some(1))]);
    wrong(Rule::Unwritten, vec![wrote(0, 1, 0), scanned(2, 3, 0, 0..1, true)]);
    wrong(Rule::Unwritten, vec![wrote(0, 1, 0), wrote(2, 3, 1), scanned(4, 5, 0, 1..2, false)]);
    let early = read(2, 3, false, Sees::Head(Some(entry(1))));
    wrong(Rule::Unwritten, vec![wrote(0, 1, 0), early, wrote(4, 5, 1)]);
}

#[test]
fn a_write_without_an_answer_may_have_happened_or_not_but_once() {
    right(vec![wrote(0, 1, 0), write_without_answer(2, 1), read_head(4, 5, Some(0))]);
    right(vec![
        wrote(0, 1, 0),
        write_without_answer(2, 1),
        read_head(4, 5, Some(0)),
        read_head(6, 7, Some(1)),
    ]);
    wrong(
        Rule::Stale,
        vec![wrote(0, 1, 0), write_without_answer(2, 1), read_head(4, 5, Some(1)), read_head(6, 7, Some(0))],
    );
    wrong(
        Rule::Bytes,
        vec![
            wrote(0, 1, 0),
            write_without_answer(2, 1),
            read_head(4, 5, Some(1)),
            read(6, 7, true, Sees::Head(Some(Entry { seqno: seqno(1), data: data("something else") }))),
        ],
    );
    wrong(Rule::Unwritten, vec![wrote(0, 1, 0), read_head(2, 3, Some(1)), write_without_answer(4, 1)]);
    // Nobody read it, but what came after rests on it.
    right(vec![wrote(0, 1, 0), write_without_answer(2, 1), wrote(4, 5, 2)]);
    wrong(Rule::Unwritten, vec![wrote(0, 1, 0), wrote(4, 5, 2)]);
}

#[test]
fn a_seqno_is_one_writes() {
    wrong(Rule::TwoWriters, vec![wrote(0, 1, 0), wrote(0, 1, 0)]);
}

#[test]
fn bytes_are_those_that_were_written() {
    let other = Sees::Head(Some(Entry { seqno: seqno(0), data: data("other") }));
    wrong(Rule::Bytes, vec![wrote(0, 1, 0), read(2, 3, false, other)]);
}

#[test]
fn a_scan_is_an_interval() {
    let written = || vec![wrote(0, 1, 0), wrote(2, 3, 1), wrote(4, 5, 2)];
    let entries = vec![entry(0), entry(2)];
    let gap = read(6, 7, true, Sees::Scan { from: seqno(0), entries, more: false });
    wrong(Rule::Interval, written().into_iter().chain([gap]).collect());
    let early = scanned(6, 7, 1, 0..3, false);
    wrong(Rule::Interval, written().into_iter().chain([early]).collect());
}

#[test]
fn an_answer_agrees_with_its_question() {
    wrong(Rule::Answer, vec![wrote(0, 1, 0), mismatched(2, 3, Some(0), Some(0))]);
    let outcome = Outcome::Answered(Cas::Committed(seqno(1), Lsn::new(20)));
    let skipped = What::Append { expected: None, data: data("v1"), outcome };
    wrong(Rule::Answer, vec![wrote(0, 1, 0), event(2, 3, skipped)]);
    let above = What::Truncate { cut: seqno(0), outcome: Outcome::Answered(Cut::AboveHead(seqno(0))) };
    wrong(Rule::Answer, vec![wrote(0, 1, 0), event(2, 3, above)]);
}

#[test]
fn what_is_removed_stays_so_and_is_removed_once() {
    let written = || vec![wrote(0, 1, 0), wrote(2, 3, 1), wrote(4, 5, 2)];
    let with = |more: Vec<Event>| written().into_iter().chain(more).collect::<Vec<_>>();
    wrong(Rule::Stale, with(vec![cut(6, 7, 1, 1), scanned(8, 9, 0, 0..3, false)]));
    wrong(
        Rule::Stale,
        with(vec![cut(6, 70, 1, 1), scanned(8, 9, 0, 1..3, false), scanned(10, 11, 0, 0..3, false)]),
    );
    wrong(Rule::RemovedTwice, with(vec![cut(6, 9, 1, 1), cut(6, 9, 2, 2)]));
    wrong(Rule::Unwritten, with(vec![cut(6, 7, 5, 1)]));
    right(with(vec![cut(6, 9, 2, 1), cut(6, 9, 1, 1)]));
}

#[test]
fn states_lie_in_one_order() {
    let written = vec![wrote(0, 1, 0), wrote(2, 9, 1), cut(2, 9, 0, 0)];
    let mut with_cut = vec![wrote(0, 1, 0), wrote(2, 3, 1), wrote(4, 90, 2), cut(4, 90, 1, 1)];
    right(written);
    // One reader has the append and not the cut, the other the cut and not the append.
    with_cut.extend([scanned(5, 60, 0, 0..3, false), scanned(5, 60, 0, 1..2, false)]);
    wrong(Rule::NoOrder, with_cut);
}

#[test]
fn positions_grow_and_are_given_once() {
    let at = |mut event: Event, at: u64| {
        let What::Append { outcome: Outcome::Answered(Cas::Committed(_, lsn)), .. } = &mut event.what else {
            unreachable!()
        };
        *lsn = Lsn::new(at);
        event
    };
    wrong(Rule::Lsn, vec![at(wrote(0, 1, 0), 10), at(wrote(2, 3, 1), 10)]);
    wrong(Rule::Lsn, vec![at(wrote(0, 1, 0), 20), at(wrote(2, 3, 1), 10)]);
    let what = What::Read { strong: false, sees: Sees::Head(Some(entry(0))), lsn: Lsn::new(5) };
    wrong(Rule::Lsn, vec![wrote(0, 1, 0), event(2, 3, what)]);
    let mut elsewhere = wrote(4, 5, 0);
    elsewhere.shard = ShardName::new("t").unwrap();
    wrong(Rule::Lsn, vec![wrote(0, 1, 0), elsewhere]);
}
