//! What a link costs by itself, measured as perftest's `ib_write_lat`, `ib_read_lat` and `ib_write_bw` measure a NIC: both sides in one
//! process, each on an address of its own. Prints one JSON object. `scripts/measure-rdma` runs it beside perftest.
//!
//! ```sh
//! cargo run --release -p headwater-benches --features verbs --example links -- verbs 10.9.0.1 10.9.0.2
//! ```

use std::error::Error;
use std::hint::spin_loop;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use headwater_rdma::verbs::{Listener, Side, TOKEN_BYTES, route};
use headwater_rdma::{Access, BELL_WORDS, Export, Link, Region, tcp, verbs};

const PATIENCE: Duration = Duration::from_secs(30);
const LOG: u32 = 1;
const TABLE: u32 = 2;
/// Words of the region that is written: room for a few of the large writes.
const LOG_WORDS: usize = BELL_WORDS + 64 * LARGE_WORDS;
/// Words of a small record: 64 bytes.
const SMALL_WORDS: usize = 8;
/// Words of a large record: 64 KiB.
const LARGE_WORDS: usize = 8 << 10;

const WARM_UP: usize = 200;
const SMALL: usize = 1000;
const LARGE: usize = 1000;

/// One side: its link, the region that the other writes, and the one that it reads.
struct Party {
    link: Arc<dyn Link>,
    log: Arc<Region>,
}

type Failed = Box<dyn Error + Send + Sync>;

fn exports() -> Result<(Arc<Region>, Vec<Export>), Failed> {
    let log = Region::create("bench-log", LOG_WORDS)?;
    let table = Region::create("bench-table", 512)?;
    let exports = vec![
        Export { id: LOG, region: log.clone(), access: Access::Write },
        Export { id: TABLE, region: table, access: Access::Read },
    ];
    Ok((log, exports))
}

fn sockets(near: IpAddr, far: IpAddr) -> Result<(TcpStream, TcpStream), Failed> {
    let listener = TcpListener::bind((far, 0))?;
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(listener.local_addr()?),
        socket2::Type::STREAM,
        None,
    )?;
    socket.bind(&std::net::SocketAddr::new(near, 0).into())?;
    socket.connect(&listener.local_addr()?.into())?;
    Ok((socket.into(), listener.accept()?.0))
}

fn by_tcp(near: IpAddr, far: IpAddr) -> Result<(Party, Party), Failed> {
    let ((near_out, far_agent), (near_agent, far_out)) = (sockets(near, far)?, sockets(near, far)?);
    let ((near_log, near_exports), (far_log, far_exports)) = (exports()?, exports()?);
    let other = thread::spawn(move || tcp::link(far_out, far_agent, far_exports, PATIENCE));
    let near = tcp::link(near_out, near_agent, near_exports, PATIENCE)?;
    let far = other.join().map_err(|_| "the other side panicked")??;
    Ok((Party { link: near, log: near_log }, Party { link: far, log: far_log }))
}

fn by_verbs(near: IpAddr, far: IpAddr) -> Result<(Party, Party), Failed> {
    let listener = Listener::bind((far, 0).into())?;
    let route = route(listener.address()?, Some(near), PATIENCE)?;
    let (near_stream, far_stream) = sockets(near, far)?;
    let ((near_log, near_exports), (far_log, far_exports)) = (exports()?, exports()?);
    let other = thread::spawn(move || -> Result<Arc<dyn Link>, Failed> {
        let request = listener.accept()?.ok_or("nobody came")?;
        Ok(verbs::link(Side::Accepting(request), far_stream, far_exports, PATIENCE)?)
    });
    let side = Side::Connecting(route, [0; TOKEN_BYTES]);
    let near = verbs::link(side, near_stream, near_exports, PATIENCE)?;
    let far = other.join().map_err(|_| "the other side panicked")??;
    Ok((Party { link: near, log: near_log }, Party { link: far, log: far_log }))
}

/// Looks until the word is what it should become. Spins, as perftest does.
fn await_word(region: &Region, word: usize, value: u64) {
    let word: &AtomicU64 = &region.words()[word];
    while word.load(Ordering::Acquire) != value {
        spin_loop();
    }
}

/// µs from posting a small record to its being in the peer's memory: half of a round trip of two such.
fn write_us(near: &Party, far: &Party) -> Result<f64, Failed> {
    let last = BELL_WORDS + SMALL_WORDS - 1;
    let rounds = WARM_UP + SMALL;
    thread::scope(|scope| {
        let echo = scope.spawn(|| -> Result<(), Failed> {
            for round in 1..=rounds as u64 {
                await_word(&far.log, last, round);
                far.link.write(LOG, BELL_WORDS, &[round; SMALL_WORDS])?;
            }
            Ok(())
        });
        let mut times = Vec::with_capacity(rounds);
        for round in 1..=rounds as u64 {
            let started = Instant::now();
            near.link.write(LOG, BELL_WORDS, &[round; SMALL_WORDS])?;
            await_word(&near.log, last, round);
            times.push(started.elapsed() / 2);
        }
        echo.join().map_err(|_| "the echo panicked")??;
        Ok(median_us(times.split_off(WARM_UP)))
    })
}

/// µs of a fetch of one word.
fn fetch_us(near: &Party) -> Result<f64, Failed> {
    let mut times = Vec::with_capacity(WARM_UP + SMALL);
    for _ in 0..WARM_UP + SMALL {
        let started = Instant::now();
        futures_executor::block_on(near.link.read(TABLE, BELL_WORDS))?;
        times.push(started.elapsed());
    }
    Ok(median_us(times.split_off(WARM_UP)))
}

/// MB/s of large records, until the last word of the last is in the peer's memory.
fn ship_mb_per_s(near: &Party, far: &Party) -> Result<f64, Failed> {
    let mut record = vec![0; LARGE_WORDS];
    let places = (LOG_WORDS - BELL_WORDS) / LARGE_WORDS;
    let at = |n: usize| BELL_WORDS + n % places * LARGE_WORDS;
    let started = Instant::now();
    for n in 0..LARGE {
        record[LARGE_WORDS - 1] = u64::MAX - n as u64;
        near.link.write(LOG, at(n), &record)?;
    }
    await_word(&far.log, at(LARGE - 1) + LARGE_WORDS - 1, u64::MAX - (LARGE - 1) as u64);
    Ok((LARGE * LARGE_WORDS * 8) as f64 / started.elapsed().as_secs_f64() / 1e6)
}

fn median_us(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [transport, near, far] = &arguments[..] else {
        return Err("usage: links verbs|tcp NEAR-ADDRESS FAR-ADDRESS".into());
    };
    let (near, far) = (near.parse()?, far.parse()?);
    let (near, far) = match transport.as_str() {
        "verbs" => by_verbs(near, far)?,
        "tcp" => by_tcp(near, far)?,
        other => return Err(format!("{other} is neither verbs nor tcp").into()),
    };
    let (write, fetch, ship) = (write_us(&near, &far)?, fetch_us(&near)?, ship_mb_per_s(&near, &far)?);
    println!(
        r#"{{"transport":"{transport}","write_us":{write:.1},"fetch_us":{fetch:.1},"ship_mb_per_s":{ship:.1}}}"#
    );
    Ok(())
}
