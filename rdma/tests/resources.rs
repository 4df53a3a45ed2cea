//! What links leave behind, and what they cost when nothing happens. One test, because it counts what belongs to the process.

#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use common::{Connect, DEADLINE, wait_for};
use headwater_rdma::{Access, Export, Region, shm, tcp};
use rustix::time::{ClockId, clock_gettime};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:leak")).count()
}

fn exports() -> Vec<Export> {
    let region = || Region::create("leak", 64).unwrap();
    vec![
        Export { id: 1, region: region(), access: Access::Write },
        Export { id: 2, region: region(), access: Access::Read },
    ]
}

/// Fails unless `body`, run many times, leaves things as they were.
fn leaves_nothing(what: &str, times: usize, body: impl Fn()) {
    body();
    let before = (descriptors(), threads(), mappings());
    (0..times).for_each(|_| body());
    // A thread that was joined may still be listed for a moment: now, or when it was counted before.
    wait_for(what, || descriptors() <= before.0 && threads() <= before.1 && mappings() <= before.2);
}

/// Microseconds of processor time that this process has used.
fn processor_us() -> i64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec * 1_000_000 + used.tv_nsec / 1_000
}

fn link_and_part(connect: Connect) {
    let (left, right) = connect(exports(), exports());
    left.write(1, 8, &[1]).unwrap();
    drop(left.read(2, 8));
    drop(left);
    wait_for("the other side hears of it", || right.closed());
}

/// What the kernel counts of the devices' objects, but for those of others.
#[cfg(feature = "verbs")]
fn rdma_objects() -> String {
    let shown = std::process::Command::new("rdma").args(["resource", "show"]).output().unwrap();
    assert!(shown.status.success(), "iproute2's `rdma` is needed");
    String::from_utf8(shown.stdout).unwrap()
}

#[cfg(feature = "verbs")]
mod verbs {
    use super::*;
    use headwater_rdma::LinkError;
    use headwater_rdma::verbs::{self, Listener, Side, TOKEN_BYTES};

    #[test]
    #[ignore = "needs RDMA devices: scripts/test-in-soft-roce"]
    fn links_leave_nothing_behind_and_cost_nothing_when_idle() {
        // What librdmacm opens once it keeps.
        link_and_part(common::verbs);
        let before = super::rdma_objects();
        leaves_nothing("after links over verbs", 1_000, || link_and_part(common::verbs));
        leaves_nothing("after links whose reads nobody waited for", 100, || {
            let (left, right) = common::verbs(exports(), exports());
            let reads: Vec<_> = (0..100).map(|_| left.read(2, 8)).collect();
            drop(left);
            drop(reads);
            drop(right);
        });
        leaves_nothing("after requests that were turned down", 100, || {
            let [near, far] = common::verbs_addresses();
            let listener = Listener::bind((far, 0).into()).unwrap();
            let route = verbs::route(listener.address().unwrap(), Some(near), DEADLINE).unwrap();
            let (stream, _far) = common::tcp_sockets();
            let asking = std::thread::spawn(move || {
                verbs::link(Side::Connecting(route, [1; TOKEN_BYTES]), stream, exports(), DEADLINE).map(drop)
            });
            drop(listener.accept().unwrap());
            assert!(matches!(asking.join().unwrap(), Err(LinkError::Io { .. })));
        });
        let start = Instant::now();
        while super::rdma_objects() != before {
            assert!(start.elapsed() < DEADLINE, "the kernel has{} of{before}", super::rdma_objects());
            std::thread::yield_now();
        }

        let idle = Duration::from_millis(500);
        let links = common::verbs(exports(), exports());
        let (start, used) = (Instant::now(), processor_us());
        let region = Region::create("idle", 64).unwrap();
        while start.elapsed() < idle {
            region.sleep(region.rings(), idle.saturating_sub(start.elapsed()));
        }
        let used = processor_us() - used;
        assert!(used < 30_000, "two idle links used {used} µs of processor time in {idle:?}");
        drop(links);
    }
}

#[test]
fn links_leave_nothing_behind_and_cost_nothing_when_idle() {
    leaves_nothing("after links over tcp", 1_000, || link_and_part(common::tcp));
    leaves_nothing("after links over shm", 1_000, || link_and_part(common::shm));
    leaves_nothing("after shm with a peer that goes away", 100, || {
        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        assert!(shm::link(near, exports(), DEADLINE).is_err());
    });
    leaves_nothing("after shm that the peer refuses", 100, || {
        let (near, far) = UnixStream::pair().unwrap();
        let mut unwritable = exports();
        let other = std::thread::spawn(move || shm::link(far, vec![], DEADLINE).map(drop));
        // Exported for reading by one number, it cannot be mapped for writing by another.
        unwritable[0].region = unwritable[1].region.clone();
        assert!(shm::link(near, unwritable, DEADLINE).is_err());
        assert!(other.join().unwrap().is_err());
    });
    leaves_nothing("after tcp with a peer that goes away", 100, || {
        let ((out, far), (far_out, agent)) = (common::tcp_sockets(), common::tcp_sockets());
        drop((far, far_out));
        assert!(tcp::link(out, agent, exports(), DEADLINE).is_err());
    });

    let idle = Duration::from_millis(300);
    let links = [common::tcp(exports(), exports()), common::shm(exports(), exports())];
    let region = Region::create("leak", 64).unwrap();
    let (start, used) = (Instant::now(), processor_us());
    while start.elapsed() < idle {
        region.sleep(region.rings(), idle.saturating_sub(start.elapsed()));
    }
    let used = processor_us() - used;
    assert!(used < 30_000, "four idle links used {used} µs of processor time in {idle:?}");
    drop(links);
}
