//! R1 and R2, with a fetch held back at each of its steps. Futures are polled by hand where the order matters.

#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use headwater_protocol::Lsn;
use headwater_timestamp::{Lamport, Nanos, Stamp};
use tokio::sync::oneshot;

#[derive(Debug, PartialEq, Eq)]
struct Failed;

type Answer = Result<(Stamp, bool), Failed>;

/// A word on a node far away, whose fetches end when the test says so.
#[derive(Default)]
struct Wire {
    clock: Cell<u64>,
    sent: Cell<u32>,
}

impl Wire {
    /// A read that arrives now, and the end of its fetch, should it send one.
    fn read<'a>(
        &'a self,
        word: &'a Lamport,
    ) -> (Pin<Box<impl Future<Output = Answer> + 'a>>, oneshot::Sender<Result<u64, Failed>>) {
        let (end, ended) = oneshot::channel();
        let now = || Nanos(self.clock.get());
        let fetch = || {
            self.sent.set(self.sent.get() + 1);
            async { ended.await.expect("the test ends every fetch that is polled again") }
        };
        (Box::pin(word.get(now(), now, fetch)), end)
    }

    fn at(&self, nanos: u64) {
        self.clock.set(nanos);
    }
}

fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn stamp(lsn: u64, sent_at: u64) -> Stamp {
    Stamp { lsn: Lsn::new(lsn), sent_at: Nanos(sent_at) }
}

#[test]
fn r1_a_fetch_sent_before_does_not_serve_who_arrives_while_it_is_under_way() {
    let (wire, word) = (Wire::default(), Lamport::new());
    wire.at(10);
    let (mut leader, end) = wire.read(&word);
    assert_eq!(poll(&mut leader), None);
    // The far side reads 64 for it; a write of 72 is answered; only then these two arrive.
    wire.at(20);
    let (mut second, second_end) = wire.read(&word);
    let (mut third, _) = wire.read(&word);
    assert_eq!((poll(&mut second), poll(&mut third)), (None, None));
    assert_eq!(wire.sent.get(), 1, "one at a time");
    wire.at(30);
    end.send(Ok(64)).unwrap();
    assert_eq!(poll(&mut leader), Some(Ok((stamp(64, 10), false))));
    assert_eq!((poll(&mut second), poll(&mut third)), (None, None));
    assert_eq!(wire.sent.get(), 2, "the second leads the next, the third shares it");
    second_end.send(Ok(72)).unwrap();
    assert_eq!(poll(&mut second), Some(Ok((stamp(72, 30), false))));
    assert_eq!(poll(&mut third), Some(Ok((stamp(72, 30), true))));
    assert_eq!(wire.sent.get(), 2);
}

#[test]
fn r1_a_completed_fetch_serves_by_the_time_it_was_sent() {
    let (wire, word) = (Wire::default(), Lamport::new());
    wire.at(10);
    let (mut leader, end) = wire.read(&word);
    assert_eq!(poll(&mut leader), None);
    let (mut same_time, _) = wire.read(&word);
    // Between sent and completed.
    wire.at(11);
    let (mut later, later_end) = wire.read(&word);
    wire.at(30);
    end.send(Ok(64)).unwrap();
    assert_eq!(poll(&mut leader), Some(Ok((stamp(64, 10), false))));
    assert_eq!(word.cached(), Some(stamp(64, 10)));
    assert_eq!(poll(&mut same_time), Some(Ok((stamp(64, 10), true))));
    assert_eq!(poll(&mut later), None);
    assert_eq!(wire.sent.get(), 2, "sent before it arrived, though completed after");
    later_end.send(Ok(72)).unwrap();
    assert_eq!(poll(&mut later), Some(Ok((stamp(72, 30), false))));
}

#[test]
fn r2_nothing_is_published_before_the_value_is_in() {
    let (wire, word) = (Wire::default(), Lamport::new());
    wire.at(10);
    let (mut first, end) = wire.read(&word);
    assert_eq!((poll(&mut first), word.cached()), (None, None));
    end.send(Ok(64)).unwrap();
    assert!(poll(&mut first).is_some());
    wire.at(20);
    let (mut second, _end) = wire.read(&word);
    assert_eq!((poll(&mut second), word.cached()), (None, Some(stamp(64, 10))));
}

#[test]
fn the_clock_is_read_just_before_the_fetch_is_sent() {
    let word = Lamport::new();
    let order = Cell::new("");
    let now = || {
        order.set(if order.get().is_empty() { "now" } else { "twice" });
        Nanos(0)
    };
    let fetch = || {
        assert_eq!(order.get(), "now", "created after");
        async { Ok::<_, Failed>(8) }
    };
    let mut read = Box::pin(word.get(Nanos(0), now, fetch));
    assert_eq!(poll(&mut read), Some(Ok((stamp(8, 0), false))));
    assert_eq!(order.get(), "now");
}

/// A leader that goes away, at either step, leaves the lead to one of those who wait.
#[test]
fn a_dropped_leader_is_followed() {
    let (wire, word) = (Wire::default(), Lamport::new());
    wire.at(10);
    let (mut leader, _end) = wire.read(&word);
    assert_eq!(poll(&mut leader), None);
    assert_eq!(wire.sent.get(), 1);
    let (mut second, second_end) = wire.read(&word);
    let (mut third, _) = wire.read(&word);
    assert_eq!((poll(&mut second), poll(&mut third)), (None, None));
    drop(leader);
    wire.at(20);
    assert_eq!((poll(&mut second), poll(&mut third)), (None, None));
    second_end.send(Ok(64)).unwrap();
    assert_eq!(poll(&mut second), Some(Ok((stamp(64, 20), false))));
    assert_eq!(poll(&mut third), Some(Ok((stamp(64, 20), true))));
}

#[test]
fn a_dropped_waiter_leaves_the_fetch_alone() {
    let (wire, word) = (Wire::default(), Lamport::new());
    let (mut leader, end) = wire.read(&word);
    assert_eq!(poll(&mut leader), None);
    let (mut waiter, _) = wire.read(&word);
    assert_eq!(poll(&mut waiter), None);
    drop(waiter);
    end.send(Ok(64)).unwrap();
    assert_eq!(poll(&mut leader), Some(Ok((stamp(64, 0), false))));
}

#[test]
fn a_failed_fetch_fails_its_leader_only() {
    let (wire, word) = (Wire::default(), Lamport::new());
    let (mut leader, end) = wire.read(&word);
    assert_eq!(poll(&mut leader), None);
    let (mut second, second_end) = wire.read(&word);
    assert_eq!(poll(&mut second), None);
    end.send(Err(Failed)).unwrap();
    assert_eq!(poll(&mut leader), Some(Err(Failed)));
    assert_eq!(word.cached(), None);
    assert_eq!(poll(&mut second), None);
    second_end.send(Ok(64)).unwrap();
    assert_eq!(poll(&mut second), Some(Ok((stamp(64, 0), false))));
}

/// With a runtime, so that a wake-up that is not given shows.
mod woken {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;

    async fn in_time<F: Future>(future: F) -> F::Output {
        tokio::time::timeout(Duration::from_secs(60), future).await.expect("a read hangs")
    }

    /// Sets its flag when dropped, so that a panic on one thread ends the loops of the others.
    struct SetOnDrop<'a>(&'a AtomicBool);

    impl Drop for SetOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[derive(Default)]
    struct Far {
        clock: AtomicU64,
        word: AtomicU64,
        sent: AtomicU64,
    }

    impl Far {
        fn now(&self) -> Nanos {
            Nanos(self.clock.fetch_add(1, Ordering::SeqCst))
        }
    }

    #[tokio::test]
    async fn sixty_four_reads_share_one_fetch() {
        let (far, word) = (Arc::new(Far::default()), Arc::new(Lamport::new()));
        let reads: Vec<_> = (0..64)
            .map(|_| {
                let (far, word) = (far.clone(), word.clone());
                tokio::spawn(async move {
                    let fetch = || async {
                        far.sent.fetch_add(1, Ordering::SeqCst);
                        tokio::task::yield_now().await;
                        Ok::<_, Failed>(64)
                    };
                    let arrival = far.now();
                    tokio::task::yield_now().await;
                    word.get(arrival, || far.now(), fetch).await.unwrap().1
                })
            })
            .collect();
        let mut reused = 0;
        for read in reads {
            reused += u32::from(in_time(read).await.unwrap());
        }
        assert_eq!((far.sent.load(Ordering::SeqCst), reused), (1, 63));
    }

    #[tokio::test]
    async fn waiters_are_woken_when_a_leader_fails_or_is_dropped() {
        for aborted in [true, false] {
            let (far, word) = (Arc::new(Far::default()), Arc::new(Lamport::new()));
            let (sent, is_sent) = oneshot::channel();
            let (end, ended) = oneshot::channel::<()>();
            let leader = {
                let (far, word) = (far.clone(), word.clone());
                tokio::spawn(async move {
                    let fetch = || async {
                        sent.send(()).unwrap();
                        ended.await.unwrap();
                        Err(Failed)
                    };
                    word.get(far.now(), || far.now(), fetch).await
                })
            };
            in_time(is_sent).await.unwrap();
            let waiting = Arc::new(AtomicU64::new(0));
            let waiters: Vec<_> = (0..8)
                .map(|_| {
                    let (far, word, waiting) = (far.clone(), word.clone(), waiting.clone());
                    tokio::spawn(async move {
                        waiting.fetch_add(1, Ordering::SeqCst);
                        let fetch = || async { Ok::<_, Failed>(64) };
                        word.get(far.now(), || far.now(), fetch).await.unwrap().0.lsn
                    })
                })
                .collect();
            in_time(async {
                while waiting.load(Ordering::SeqCst) < 8 {
                    tokio::task::yield_now().await;
                }
            })
            .await;
            if aborted {
                leader.abort();
            } else {
                end.send(()).unwrap();
                assert_eq!(in_time(leader).await.unwrap(), Err(Failed));
            }
            for waiter in waiters {
                assert_eq!(in_time(waiter).await.unwrap(), Lsn::new(64));
            }
        }
    }

    /// The property that R1 is for: a read sees everything that was stamped before it arrived, though the value of a
    /// fetch is taken at once and comes back late.
    #[test]
    fn r1_a_read_sees_what_was_stamped_before_it_arrived() {
        const READS: u32 = 3000;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_time().build().unwrap();
        let (far, word) = (Arc::new(Far::default()), Arc::new(Lamport::new()));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    far.word.fetch_add(8, Ordering::SeqCst);
                    std::thread::yield_now();
                }
            });
            let readers: Vec<_> = (0..8)
                .map(|reader| {
                    let (far, word) = (far.clone(), word.clone());
                    runtime.spawn(async move {
                        let mut reused = 0;
                        for i in 0..READS {
                            let stamped = far.word.load(Ordering::SeqCst);
                            let arrival = far.now();
                            let fetch = || async {
                                let value = far.word.load(Ordering::SeqCst);
                                for _ in 0..reader {
                                    tokio::task::yield_now().await;
                                }
                                if i % 7 == 0 { Err(Failed) } else { Ok(value) }
                            };
                            if let Ok((stamp, shared)) = word.get(arrival, || far.now(), fetch).await {
                                assert!(stamp.lsn.get() >= stamped, "{stamp:?} lacks {stamped}");
                                assert!(stamp.sent_at >= arrival);
                                reused += u32::from(shared);
                            }
                        }
                        reused
                    })
                })
                .collect();
            let _done = SetOnDrop(&done);
            let reused: u32 = runtime.block_on(in_time(async {
                let mut reused = 0;
                for reader in readers {
                    reused += reader.await.unwrap();
                }
                reused
            }));
            assert!(reused > READS, "{reused} reads shared a fetch");
        });
    }

    /// Every fetch brings eight times the time it was sent at, so a value beside another's send time shows.
    #[test]
    fn r2_value_and_send_time_are_published_together() {
        const FETCHES: u64 = 100_000;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let word = Lamport::new();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if let Some(stamp) = word.cached() {
                        assert_eq!(stamp.lsn.get(), 8 * stamp.sent_at.0);
                    }
                }
            });
            let _done = SetOnDrop(&done);
            runtime.block_on(async {
                for i in 1..=FETCHES {
                    let fetch = || async { Ok::<_, Failed>(8 * i) };
                    let (stamp, reused) = word.get(Nanos(i), || Nanos(i), fetch).await.unwrap();
                    assert_eq!((stamp, reused), (super::stamp(8 * i, i), false));
                }
            });
        });
    }
}
