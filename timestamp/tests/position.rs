//! A position wakes exactly those whose LSN it reaches, and loses none of them.

#![allow(clippy::unwrap_used)]

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use headwater_protocol::Lsn;
use headwater_timestamp::Position;

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Wakes>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn lsn(n: u64) -> Lsn {
    Lsn::new(n)
}

fn poll(future: std::pin::Pin<&mut impl Future<Output = ()>>, wakes: &Arc<Wakes>) -> bool {
    let waker = Waker::from(wakes.clone());
    future.poll(&mut Context::from_waker(&waker)) == Poll::Ready(())
}

#[test]
fn only_grows() {
    let position = Position::new(lsn(16));
    position.advance(lsn(8));
    assert_eq!(position.get(), lsn(16));
    position.advance(lsn(24));
    assert_eq!(position.get(), lsn(24));
}

#[test]
fn what_is_reached_does_not_wait() {
    let position = Position::new(lsn(16));
    assert!(poll(pin!(position.reached(lsn(16))), &Arc::default()));
    assert!(poll(pin!(position.reached(lsn(8))), &Arc::default()));
    assert!(!poll(pin!(position.reached(lsn(17))), &Arc::default()));
}

#[test]
fn wakes_exactly_those_whose_lsn_is_reached() {
    let position = Position::new(lsn(0));
    let mut waiting: Vec<_> =
        [8, 16, 16, 24].map(|n| (Box::pin(position.reached(lsn(n))), Arc::<Wakes>::default())).into();
    for (reached, wakes) in &mut waiting {
        assert!(!poll(reached.as_mut(), wakes));
    }
    let woken = |waiting: &[(_, Arc<Wakes>)]| {
        waiting.iter().map(|(_, w)| w.0.load(Ordering::SeqCst)).collect::<Vec<_>>()
    };
    position.advance(lsn(7));
    assert_eq!(woken(&waiting), [0, 0, 0, 0]);
    position.advance(lsn(16));
    assert_eq!(woken(&waiting), [1, 1, 1, 0]);
    position.advance(lsn(23));
    assert_eq!(woken(&waiting), [1, 1, 1, 0]);
    position.advance(lsn(100));
    assert_eq!(woken(&waiting), [1, 1, 1, 1]);
    for (reached, wakes) in &mut waiting {
        assert!(poll(reached.as_mut(), wakes));
    }
}

#[test]
fn wakes_the_task_that_polled_last() {
    let position = Position::new(lsn(0));
    let mut reached = pin!(position.reached(lsn(8)));
    let (first, second) = (Arc::<Wakes>::default(), Arc::<Wakes>::default());
    assert!(!poll(reached.as_mut(), &first));
    assert!(!poll(reached.as_mut(), &second));
    assert_eq!(Arc::strong_count(&first), 1, "the first waker is not kept");
    position.advance(lsn(8));
    assert_eq!((first.0.load(Ordering::SeqCst), second.0.load(Ordering::SeqCst)), (0, 1));
}

#[test]
fn a_dropped_wait_leaves_nothing_behind() {
    let position = Position::new(lsn(0));
    let (dropped, kept) = (Arc::<Wakes>::default(), Arc::<Wakes>::default());
    let mut waits = pin!(position.reached(lsn(16)));
    assert!(!poll(waits.as_mut(), &kept));
    {
        let mut cancelled = pin!(position.reached(lsn(8)));
        assert!(!poll(cancelled.as_mut(), &dropped));
        let mut same_lsn = pin!(position.reached(lsn(16)));
        assert!(!poll(same_lsn.as_mut(), &dropped));
        assert_eq!(Arc::strong_count(&dropped), 3);
    }
    assert_eq!(Arc::strong_count(&dropped), 1);
    position.advance(lsn(16));
    assert_eq!((dropped.0.load(Ordering::SeqCst), kept.0.load(Ordering::SeqCst)), (0, 1));
}

/// One waits and one advances, at the same time, over and over: a wake-up lost once would hang for good.
#[test]
fn no_wake_up_is_lost() {
    const ROUNDS: u64 = 30_000;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let waits = Arc::new(Position::new(lsn(0)));
    let answers = Arc::new(Position::new(lsn(0)));
    let task = {
        let (waits, answers) = (waits.clone(), answers.clone());
        runtime.spawn(async move {
            for round in 1..=ROUNDS {
                waits.reached(lsn(round)).await;
                answers.advance(lsn(round));
            }
        })
    };
    runtime.block_on(async {
        let ping_pong = async {
            for round in 1..=ROUNDS {
                waits.advance(lsn(round));
                answers.reached(lsn(round)).await;
            }
            task.await.unwrap();
        };
        tokio::time::timeout(Duration::from_secs(60), ping_pong).await.expect("a wake-up was lost");
    });
}

/// Many wait for each LSN while several advance, and some give up and begin again.
#[test]
fn many_waiters_and_cancellations() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_time().build().unwrap();
    let position = Arc::new(Position::new(lsn(0)));
    let tasks: Vec<_> = (0..2000u64)
        .map(|i| {
            let position = position.clone();
            runtime.spawn(async move {
                let wanted = lsn(1 + i % 500);
                if i % 3 == 0 {
                    tokio::select! {
                        biased;
                        () = position.reached(wanted) => {}
                        () = tokio::task::yield_now() => {}
                    }
                }
                position.reached(wanted).await;
                assert!(position.get() >= wanted);
            })
        })
        .collect();
    runtime.block_on(async {
        let advancing: Vec<_> = (0..3)
            .map(|thread| {
                let position = position.clone();
                tokio::spawn(async move {
                    for n in (1 + thread..=500).step_by(3) {
                        position.advance(lsn(n));
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        let all = async {
            for task in advancing.into_iter().chain(tasks) {
                task.await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("a wake-up was lost");
    });
}
