//! What the machine has.

use std::fs;
use std::thread::available_parallelism;

use rustix::fs::{MemfdFlags, memfd_create, statvfs};
use rustix::process::{Resource, getrlimit};

use super::Check;
use crate::units;

/// A node with its default ring and some state.
const MEMORY_MIN: u64 = 512 << 20;
/// The default ring, and what else would be registered for RDMA.
const MEMLOCK_MIN: u64 = 128 << 20;
/// Clients, replicas and segment files.
const OPEN_FILES_MIN: u64 = 4096;
/// The rings of a few nodes on one host.
const SHM_MIN: u64 = 256 << 20;

/// Looks at all of it.
pub(crate) fn checks() -> Vec<Check> {
    vec![cores(), memory(), memlock(), open_files(), dev_shm(), memfd()]
}

fn cores() -> Check {
    match available_parallelism() {
        Ok(cores) => Check::good_if(
            cores.get() >= 2,
            "cores",
            cores.to_string(),
            "give a node 2 or more: it flushes, ships and answers at the same time",
        ),
        Err(e) => Check::warn("cores", e.to_string(), "the number of cores cannot be read"),
    }
}

fn memory() -> Check {
    let kib = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    match kib {
        Some(kib) => Check::good_if(
            kib << 10 >= MEMORY_MIN,
            "memory available",
            units::bytes(kib << 10),
            "all state is in memory: free some, or use a larger machine",
        ),
        None => Check::warn("memory available", "unknown".into(), "/proc/meminfo cannot be read"),
    }
}

fn limit(resource: Resource, least: u64, check: &str, show: fn(u64) -> String, advice: &str) -> Check {
    match getrlimit(resource).current {
        None => Check::ok(check, "unlimited".into()),
        Some(limit) => Check::good_if(limit >= least, check, show(limit), advice),
    }
}

fn memlock() -> Check {
    let advice =
        "only RDMA needs more: set memlock to unlimited in limits.conf, or LimitMEMLOCK=infinity in the unit";
    limit(Resource::Memlock, MEMLOCK_MIN, "memlock limit", units::bytes, advice)
}

fn open_files() -> Check {
    let advice = "each client takes one: raise nofile in limits.conf, or LimitNOFILE in the unit";
    limit(Resource::Nofile, OPEN_FILES_MIN, "open files limit", units::count, advice)
}

fn dev_shm() -> Check {
    match statvfs("/dev/shm") {
        Ok(shm) => Check::good_if(
            shm.f_bavail * shm.f_frsize >= SHM_MIN,
            "/dev/shm free",
            units::bytes(shm.f_bavail * shm.f_frsize),
            "little shared memory for other programs; in a container, raise --shm-size",
        ),
        Err(e) => Check::warn("/dev/shm free", e.to_string(), "mount a tmpfs at /dev/shm"),
    }
}

fn memfd() -> Check {
    match memfd_create("headwater-doctor", MemfdFlags::CLOEXEC) {
        Ok(_) => Check::ok("memfd", "nodes on one host can share memory".into()),
        Err(e) => {
            Check::warn("memfd", e.to_string(), "ROs on the RW's host will use tcp instead of shared memory")
        }
    }
}
