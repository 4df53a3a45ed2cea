//! The transports: fetching a word, posting words, and a round trip through two sleeping owners' bells, between two links of one process.

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use headwater_rdma::{Access, BELL_WORDS, Export, Link, Region, Transport, shm, tcp};

const TABLE: u32 = 1;
const LOG: u32 = 2;
const LOG_WORDS: usize = 1 << 17;
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn region(words: usize) -> Arc<Region> {
    Region::create("bench", words).expect("there is memory")
}

/// Two connected TCP sockets.
fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let near = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
    let (far, _) = listener.accept().expect("it connected");
    (near, far)
}

/// Two linked sides, with what each exports.
fn pair(transport: Transport, left: Vec<Export>, right: Vec<Export>) -> (Arc<dyn Link>, Arc<dyn Link>) {
    match transport {
        Transport::Shm => {
            let (near, far) = UnixStream::pair().expect("a socket pair");
            let right = thread::spawn(move || shm::link(far, right, PATIENCE).expect("a link"));
            (shm::link(near, left, PATIENCE).expect("a link"), right.join().expect("no panic"))
        }
        Transport::Tcp => {
            let ((left_out, right_agent), (right_out, left_agent)) = (sockets(), sockets());
            let right =
                thread::spawn(move || tcp::link(right_out, right_agent, right, PATIENCE).expect("a link"));
            let left = tcp::link(left_out, left_agent, left, PATIENCE).expect("a link");
            (left, right.join().expect("no panic"))
        }
        Transport::Verbs => unreachable!("it takes devices, and is measured where there are some"),
    }
}

/// One word of the peer's, one fetch at a time: what a strong read costs when nobody shares its fetch.
fn fetch(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    for transport in [Transport::Shm, Transport::Tcp] {
        let table = Export { id: TABLE, region: region(512), access: Access::Read };
        let (left, _right) = pair(transport, vec![], vec![table]);
        c.bench_function(&format!("fetch/{transport}"), |b| {
            b.iter(|| runtime.block_on(left.read(TABLE, BELL_WORDS)).expect("the link is open"));
        });
    }
}

/// Words into the peer's region, posted one write after the other; over tcp, as fast as the peer's agent takes them.
fn post(c: &mut Criterion) {
    for transport in [Transport::Shm, Transport::Tcp] {
        let log = Export { id: LOG, region: region(LOG_WORDS), access: Access::Write };
        let (left, _right) = pair(transport, vec![], vec![log]);
        let mut group = c.benchmark_group(format!("post/{transport}"));
        for words in [4, 128, 16 << 10] {
            let payload = vec![7; words];
            group.throughput(Throughput::Bytes(words as u64 * 8));
            group.bench_function(BenchmarkId::new("words", words), |b| {
                b.iter(|| left.write(LOG, BELL_WORDS, &payload).expect("the link is open"));
            });
        }
        group.finish();
    }
}

/// A write and a ring there, a sleeping owner woken, and the same back.
fn wake(c: &mut Criterion) {
    for transport in [Transport::Shm, Transport::Tcp] {
        let (ours, theirs) = (region(512), region(512));
        let export = |region: &Arc<Region>| Export { id: LOG, region: region.clone(), access: Access::Write };
        let (left, right) = pair(transport, vec![export(&ours)], vec![export(&theirs)]);
        let echo = thread::spawn(move || {
            let mut last = 0;
            while let Some(news) = await_news(&theirs, right.as_ref(), last) {
                right
                    .write(LOG, BELL_WORDS, &[news])
                    .and_then(|()| right.ring(LOG))
                    .expect("the link is open");
                last = news;
            }
        });
        let mut sent = 0;
        c.bench_function(&format!("wake-and-back/{transport}"), |b| {
            b.iter(|| {
                let last = sent;
                sent += 1;
                left.write(LOG, BELL_WORDS, &[sent]).and_then(|()| left.ring(LOG)).expect("the link is open");
                await_news(&ours, left.as_ref(), last).expect("the link is open");
            });
        });
        left.close();
        echo.join().expect("no panic");
    }
}

/// Sleeps until the region's first word is no longer `last`; none when the link is closed.
fn await_news(region: &Region, link: &dyn Link, last: u64) -> Option<u64> {
    loop {
        let seen = region.rings();
        let word = region.words()[BELL_WORDS].load(Ordering::Acquire);
        if word != last {
            return Some(word);
        }
        if link.closed() {
            return None;
        }
        region.sleep(seen, PATIENCE);
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_secs(1));
    targets = fetch, post, wake
}
criterion_main!(benches);
