//! RDMA on this host, and what a link with an RW costs by each transport.

use std::fs;
use std::time::{Duration, Instant};

use headwater_attach::{AttachError, Peer, probe};
use headwater_protocol::regions::{BELL_WORDS, region};
use headwater_protocol::replication::{Hello, Transport};
use headwater_protocol::status::NodeStatus;
use headwater_rdma::verbs::{self, Device, Port, Unavailable};
use uuid::Uuid;

use super::measure::quantiles;
use super::{Check, Verdict};
use crate::units;

/// Words that are fetched, one after the other, to time one: so many, or as many as can be in so long.
const FETCHES: usize = 200;
const FETCHING_MAX: Duration = Duration::from_secs(1);
/// Bytes of the default ring and what goes with it.
const RING_BYTES: u64 = 65 << 20;

/// The devices, and what the kernel has for them.
pub(crate) fn checks() -> Vec<Check> {
    let mut checks = match verbs::devices() {
        Ok(devices) => of_devices(&devices),
        Err(Unavailable::NoActivePort(devices)) => of_devices(&devices),
        Err(unavailable) => vec![none(&unavailable)],
    };
    checks.push(huge_pages());
    checks
}

fn none(unavailable: &Unavailable) -> Check {
    let advice = match unavailable {
        Unavailable::NotBuilt => "nodes use shm and tcp; build with `--features verbs` for RDMA",
        Unavailable::Library(_) => {
            "nodes use shm and tcp; for RDMA install libibverbs1, librdmacm1 and ibverbs-providers"
        }
        Unavailable::Kernel | Unavailable::ConnectionManager(_) => {
            "nodes use shm and tcp; for RDMA load the device's driver, and rdma_ucm and ib_uverbs"
        }
        _ => "nodes use shm and tcp; for soft-RoCE: rdma link add rxe0 type rxe netdev INTERFACE",
    };
    Check {
        check: "RDMA".into(),
        verdict: Verdict::Ok,
        found: unavailable.to_string(),
        advice: advice.into(),
    }
}

fn of_devices(devices: &[Device]) -> Vec<Check> {
    let ports = devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)));
    ports.map(|(device, port)| of_port(device, port)).collect()
}

fn of_port(device: &Device, port: &Port) -> Check {
    let check = format!("RDMA device {} port {}", device.name, port.number);
    let kind = if port.infiniband { "InfiniBand" } else { "Ethernet (RoCE)" };
    let gids: Vec<String> = port.gids.iter().map(|gid| format!("{}: {gid}", gid.index)).collect();
    let found = format!("{kind}, MTU {}, GIDs {}", port.mtu, gids.join(", "));
    if !port.active {
        return Check::warn(
            &check,
            format!("not active, {found}"),
            "bring its link up: ip link set INTERFACE up",
        );
    }
    let addressed = port.infiniband || port.gids.iter().any(|gid| gid.ip().is_some());
    Check::good_if(
        addressed,
        &check,
        format!("active, {found}"),
        "give its interface an IP address: RDMA connections are made by it",
    )
}

/// Whether rings can lie in huge pages.
fn huge_pages() -> Check {
    let read = |file: &str| {
        let path = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{file}");
        fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok())
    };
    let (free, all) = (read("free_hugepages").unwrap_or(0), read("nr_hugepages").unwrap_or(0));
    let enough = free << 21 >= RING_BYTES;
    let found = format!("{} free of {} of 2 MiB", units::count(free), units::count(all));
    let advice = if enough {
        ""
    } else {
        "optional: with sysctl vm.nr_hugepages=64 a NIC needs fewer look-ups for a ring"
    };
    Check { check: "huge pages".into(), verdict: Verdict::Ok, found, advice: advice.into() }
}

/// What fetching a word of the RW's memory takes by each transport. Blocks.
pub(crate) fn transports(address: &str, status: &NodeStatus) -> Vec<Check> {
    let hello = Hello {
        node: Uuid::new_v4(),
        name: "doctor".into(),
        address: String::new(),
        cluster: status.cluster.clone(),
        cluster_id: status.cluster_id,
    };
    let peer = Peer { rw: address.into(), hello, rdma: None };
    let transports = [("shm", Transport::Shm), ("verbs", Transport::Verbs), ("tcp", Transport::Tcp)];
    transports.map(|(name, transport)| of_transport(&peer, name, transport)).into()
}

fn of_transport(peer: &Peer, name: &str, transport: Transport) -> Check {
    let check = format!("link with {} by {name}", peer.rw);
    match fetch_times(peer, transport) {
        Ok(times) => {
            let (p50, p99) = quantiles(times);
            Check::ok(&check, format!("a fetch takes p50 {}, p99 {}", units::time(p50), units::time(p99)))
        }
        Err(AttachError::NotToBeHad { why, .. }) => Check::ok(&check, format!("not to be had: {why}")),
        Err(error) => {
            let advice =
                "ROs here will use another transport: look at the RW's log, and at the network between";
            Check::warn(&check, error.to_string(), advice)
        }
    }
}

fn fetch_times(peer: &Peer, transport: Transport) -> Result<Vec<Duration>, AttachError> {
    let link = probe(peer, transport)?;
    let began = Instant::now();
    let mut times = Vec::with_capacity(FETCHES);
    while times.is_empty() || times.len() < FETCHES && began.elapsed() < FETCHING_MAX {
        let started = Instant::now();
        let fetched = futures_executor::block_on(link.read(region::PROBE, BELL_WORDS));
        fetched.map_err(|source| AttachError::Link { address: peer.rw.clone(), source })?;
        times.push(started.elapsed());
    }
    Ok(times)
}
