//! Load: workers that do one operation after the other, and how long each took.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hdrhistogram::Histogram;
use headwater_client::ClientError;
use serde::Serialize;
use tokio::sync::Semaphore;

/// How long a worker rests after an error, so that a cluster that is down is not asked in a tight loop.
const REST_AFTER_ERROR: Duration = Duration::from_millis(20);

/// What a worker does over and over. One operation is in flight for each worker.
pub(crate) trait Work: Send + 'static {
    /// Does one operation, and says what it was.
    fn step(&mut self) -> impl Future<Output = Result<Kind, ClientError>> + Send;
}

/// What an operation was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// It only looked.
    Read,
    /// It changed something.
    Write,
}

/// When operations are started, and which are measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// The first are not measured.
    pub(crate) warmup: Duration,
    /// How long it is measured.
    pub(crate) measured: Duration,
    /// Operations a second for all workers together, whether earlier ones are done or not; each then counts from when it
    /// should have started. None: a worker starts an operation when its last one is done.
    pub(crate) rate: Option<f64>,
}

/// How a load went. Operations that ended after the warm-up are counted.
pub(crate) struct Measured {
    /// Times of reads, ns.
    pub(crate) reads: Histogram<u64>,
    /// Times of writes, ns.
    pub(crate) writes: Histogram<u64>,
    /// How long it was measured.
    pub(crate) measured: Duration,
    /// Operations that failed.
    pub(crate) errors: u64,
    /// The first failure.
    pub(crate) first_error: Option<String>,
    /// Operations that should have started by the rate, but no worker was free before the end.
    pub(crate) unstarted: u64,
}

/// A load's times in short.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Summary {
    /// How many.
    pub(crate) count: u64,
    /// How many a second.
    pub(crate) per_s: f64,
    /// Half took at most this long, µs.
    pub(crate) p50_us: f64,
    /// 90% did.
    pub(crate) p90_us: f64,
    /// 99% did.
    pub(crate) p99_us: f64,
    /// 99.9% did.
    pub(crate) p999_us: f64,
    /// All did.
    pub(crate) max_us: f64,
}

impl Summary {
    fn of(times: &Histogram<u64>, measured: Duration) -> Summary {
        let micros = |ns: u64| (ns / 100) as f64 / 10.0;
        Summary {
            count: times.len(),
            per_s: (times.len() as f64 / measured.as_secs_f64()).round(),
            p50_us: micros(times.value_at_quantile(0.5)),
            p90_us: micros(times.value_at_quantile(0.9)),
            p99_us: micros(times.value_at_quantile(0.99)),
            p999_us: micros(times.value_at_quantile(0.999)),
            max_us: micros(times.max()),
        }
    }
}

impl Measured {
    /// Reads in short.
    pub(crate) fn reads(&self) -> Summary {
        Summary::of(&self.reads, self.measured)
    }

    /// Writes in short.
    pub(crate) fn writes(&self) -> Summary {
        Summary::of(&self.writes, self.measured)
    }

    fn new(measured: Duration) -> Measured {
        Measured { reads: times(), writes: times(), measured, errors: 0, first_error: None, unstarted: 0 }
    }

    fn add(&mut self, other: Measured) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.errors += other.errors;
        self.unstarted += other.unstarted;
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

fn times() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are a legal precision")
}

/// Lets the workers work as scheduled.
pub(crate) async fn run<W: Work>(workers: Vec<W>, schedule: Schedule) -> Measured {
    let first = Instant::now();
    let begin = first + schedule.warmup;
    let end = begin + schedule.measured;
    let arrivals = schedule.rate.map(|rate| Arrivals::start(first, end, rate));
    let tasks = workers.into_iter().map(|worker| {
        let arrivals = arrivals.as_ref().map(|arrivals| arrivals.shared.clone());
        tokio::spawn(work(worker, arrivals, begin, end))
    });
    let mut measured = Measured::new(schedule.measured);
    for done in join_all(tasks).await {
        match done {
            Ok(done) => measured.add(done),
            Err(e) => std::panic::resume_unwind(e.into_panic()),
        }
    }
    if let Some(arrivals) = arrivals {
        measured.unstarted += arrivals.stop().await;
    }
    measured
}

async fn work<W: Work>(
    mut worker: W,
    arrivals: Option<Arc<Shared>>,
    begin: Instant,
    end: Instant,
) -> Measured {
    let mut measured = Measured::new(end - begin);
    loop {
        let due = match &arrivals {
            None => Some(Instant::now()),
            Some(arrivals) => arrivals.next().await,
        };
        let Some(due) = due else { return measured };
        if Instant::now() >= end {
            measured.unstarted += u64::from(arrivals.is_some());
            return measured;
        }
        let done = worker.step().await;
        let took = u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX);
        match done {
            Ok(_) if Instant::now() < begin => {}
            Ok(kind) => {
                let times = match kind {
                    Kind::Read => &mut measured.reads,
                    Kind::Write => &mut measured.writes,
                };
                times.record(took).expect("it grows with what it records");
            }
            Err(error) => {
                measured.errors += 1;
                measured.first_error.get_or_insert_with(|| error.to_string());
                tokio::time::sleep(REST_AFTER_ERROR).await;
            }
        }
    }
}

/// Starts of operations at a rate that no operation can slow down.
struct Arrivals {
    shared: Arc<Shared>,
    pacer: tokio::task::JoinHandle<()>,
    /// Operations from the first to the end.
    scheduled: u64,
}

struct Shared {
    first: Instant,
    rate: f64,
    due: Semaphore,
    taken: AtomicU64,
}

impl Shared {
    fn at(&self, index: u64) -> Instant {
        self.first + Duration::from_secs_f64(index as f64 / self.rate)
    }

    /// When the next operation should have started, once that is past; none at the end.
    async fn next(&self) -> Option<Instant> {
        self.due.acquire().await.ok()?.forget();
        Some(self.at(self.taken.fetch_add(1, Relaxed)))
    }
}

impl Arrivals {
    fn start(first: Instant, end: Instant, rate: f64) -> Arrivals {
        let shared = Arc::new(Shared { first, rate, due: Semaphore::new(0), taken: AtomicU64::new(0) });
        let scheduled = ((end - first).as_secs_f64() * rate).floor() as u64;
        let pacer = tokio::task::spawn_blocking({
            let shared = shared.clone();
            move || shared.pace(scheduled, end)
        });
        Arrivals { shared, pacer, scheduled }
    }

    /// Waits for the end; operations that no worker took.
    async fn stop(self) -> u64 {
        if let Err(e) = self.pacer.await {
            std::panic::resume_unwind(e.into_panic());
        }
        self.scheduled.saturating_sub(self.shared.taken.load(Relaxed))
    }
}

impl Shared {
    /// On a thread of its own: the runtime's timer is only good to a millisecond.
    fn pace(&self, scheduled: u64, end: Instant) {
        let mut released = 0;
        while released < scheduled {
            std::thread::sleep(self.at(released).saturating_duration_since(Instant::now()));
            let due = (self.first.elapsed().as_secs_f64() * self.rate) as u64 + 1;
            let due = due.min(scheduled);
            self.due.add_permits(usize::try_from(due - released).unwrap_or(0));
            released = due;
        }
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        self.due.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Stall {
        calls: u64,
        stall_at: u64,
        stall: Duration,
    }

    impl Work for Stall {
        async fn step(&mut self) -> Result<Kind, ClientError> {
            self.calls += 1;
            if self.calls == self.stall_at {
                tokio::time::sleep(self.stall).await;
            }
            Ok(Kind::Read)
        }
    }

    fn schedule(rate: Option<f64>) -> Schedule {
        Schedule { warmup: Duration::ZERO, measured: Duration::from_millis(400), rate }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_stall_counts_for_all_that_should_have_started_meanwhile() {
        let worker = Stall { calls: 0, stall_at: 10, stall: Duration::from_millis(200) };
        let measured = run(vec![worker], schedule(Some(500.0))).await;
        // One operation took 200 ms; by the rate 100 should have started meanwhile, and half of those waited 100 ms or more.
        let late = measured.reads.iter_recorded().filter(|v| v.value_iterated_to() >= 90_000_000);
        let late: u64 = late.map(|v| v.count_at_value()).sum();
        assert!(late >= 40, "{late} of {}", measured.reads.len());
        assert_eq!(measured.unstarted + measured.reads.len(), 200);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_nobody_had_time_for_is_said() {
        let worker = Stall { calls: 0, stall_at: 1, stall: Duration::from_millis(500) };
        let measured = run(vec![worker], schedule(Some(1000.0))).await;
        assert_eq!((measured.reads.len(), measured.unstarted), (1, 399));
    }

    struct Failing;

    impl Work for Failing {
        async fn step(&mut self) -> Result<Kind, ClientError> {
            Err(ClientError::InvalidArgument("no".into()))
        }
    }

    #[tokio::test]
    async fn errors_are_counted_and_not_timed() {
        let measured = run(vec![Failing], schedule(None)).await;
        assert!((1..=21).contains(&measured.errors), "{}", measured.errors);
        assert_eq!((measured.reads.len(), measured.writes.len()), (0, 0));
        assert_eq!(measured.first_error.as_deref(), Some("invalid argument: no"));
    }
}
