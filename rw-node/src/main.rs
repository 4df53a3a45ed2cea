//! The read-write node: orders every write, makes it durable, ships it to the read-only nodes.
//!
//! The path of a write: `service` → `write` (decide, append) → the flusher of `headwater-wal`, and at the same time `ship` →
//! `commit` (stamp, visible, publish, answer).

mod config;
mod write;
mod replicas;
mod commit;
mod ship;
mod attach;
mod verbs_door;
mod service;

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use headwater_node::config::{Common, ConfigError, load};
use headwater_node::{
    Counters, EXIT_FAULT, Listener, Server, ServerError, Stop, Timer, init_logging, terminated,
    write_ready_file,
};
use headwater_protocol::regions::log;
use headwater_protocol::replication::Welcome;
use headwater_rdma::Region;
use headwater_rdma::shm::boot_id;
use headwater_rdma::verbs::Request;
use headwater_shard_log::ShardLog;
use headwater_timestamp::Table;
use headwater_wal::{Wal, WalOptions, spawn_flusher};
use tracing::{error, info, warn};
use uuid::Uuid;

use crate::attach::{Attacher, Joining, Second};
use crate::commit::Commit;
use crate::config::Config;
use crate::replicas::Replicas;
use crate::service::Rw;
use crate::verbs_door::{Rdma, VerbsDoor};
use crate::write::Writer;

/// The process ends with this when the disk failed it (W5): what was not acknowledged may or may not be in the log.
const EXIT_DISK_FAILED: i32 = 74;

#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Log(#[from] headwater_wal::OpenError),
    #[error("shared memory: {0}")]
    Memory(#[from] headwater_rdma::RegionError),
    #[error("{doing}: {source}")]
    Io { doing: &'static str, source: std::io::Error },
}

fn main() -> ExitCode {
    let command = clap::Command::new("rw-node").about("Headwater's read-write node: orders every write, makes it durable and ships it to the read-only nodes.");
    let started = load(command, &[&Common::SETTINGS, &Config::SETTINGS], &Config::default())
        .and_then(|config| {
            init_logging(&config.common.log).map_err(ConfigError)?;
            Ok(config)
        })
        .map_err(StartError::from)
        .and_then(run);
    match started {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rw-node: {error}");
            ExitCode::FAILURE
        }
    }
}

fn io_error(doing: &'static str) -> impl FnOnce(std::io::Error) -> StartError {
    move |source| StartError::Io { doing, source }
}

fn run(config: Config) -> Result<(), StartError> {
    let timer = Timer::start();
    let (data_dir, layout) = config.validate()?;
    headwater_node::exit_on_panic();
    headwater_node::raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("rw-sessions")
        .build()
        .map_err(io_error("cannot start the sessions' threads"))?;
    // First the address: to fail on it after a long recovery would be a waste.
    let server = runtime.block_on(Server::bind(&config.common.listen))?;
    let address = config.common.advertise.clone().unwrap_or_else(|| server.address().to_string());

    // The log.
    let began = Instant::now();
    let ring_bytes = config.ring_bytes.as_u64();
    let log_region = Region::create("headwater-log", log::RING + (ring_bytes / 8) as usize)?;
    let log = Arc::new(ShardLog::new());
    let options = WalOptions {
        dir: data_dir.clone(),
        cluster: config.common.cluster.clone(),
        segment_bytes: config.segment_bytes.as_u64(),
        lease: config.lease,
    };
    let (wal, appender) = Wal::open(options, log_region, log::RING, ring_bytes, &mut |change, lsn| {
        log.apply(change, lsn).map(drop).map_err(|violation| violation.to_string())
    })?;
    info!(
        dir = %data_dir.display(), cluster = %wal.cluster(), id = %wal.cluster_id(), epoch = %wal.epoch(),
        recovered = %wal.recovered(), shards = log.len(), entries = log.entries(), took = ?began.elapsed(),
        "the log is open"
    );

    // The nodes' shared words, and what moves the positions.
    let table_region = Region::create("headwater-timestamps", layout.words())?;
    let table = Table::new(table_region.clone(), layout, wal.epoch(), wal.recovered());
    let entry_bytes_max = config.entry_bytes_max.as_u64() as usize;
    let writer = Arc::new(Writer::new(log.clone(), appender, config.in_flight_max, entry_bytes_max));
    let replicas = Arc::new(Replicas::default());
    let commit = Arc::new(Commit::new(writer.clone(), table, log.clone(), replicas.clone(), wal.recovered()));
    let flusher = {
        let commit = commit.clone();
        let on_batch = move || replicas.ring_all();
        let on_flushed = move |flushed| {
            if commit.flushed(flushed).is_break() {
                std::process::exit(EXIT_FAULT);
            }
        };
        let on_failed = |error| {
            error!(%error, "the disk failed; nothing more is believed or acknowledged, the RW ends here");
            std::process::exit(EXIT_DISK_FAILED);
        };
        spawn_flusher(wal.clone(), on_batch, on_flushed, on_failed)
            .map_err(io_error("cannot start the flusher"))?
    };

    // The doors. The log opened when no RO could read strongly under the epoch before any more (E3), so what was
    // recovered may be shown from here on, and not before.
    let stop = Stop::default();
    let closing = Stop::default();
    let socket = data_dir.join("rw.sock");
    let host_listener = host_listener(&socket);
    let welcome = Welcome {
        node: Uuid::new_v4(),
        name: config.common.name.clone(),
        address: address.clone(),
        cluster: wal.cluster().to_owned(),
        cluster_id: wal.cluster_id(),
        history: wal.history().clone(),
        ring_bytes,
        shard_slots: layout.shard_slots,
        page_slots: layout.page_slots,
        page_entries: layout.page_entries,
        boot_id: boot_id().map_err(io_error("cannot read the host's boot id"))?,
        verbs: Vec::new(),
        no_verbs: String::new(),
        shm_socket: host_listener.as_ref().map(|_| absolute(&socket)),
    };
    let joining = Joining::default();
    let verbs = {
        let joining = joining.clone();
        let came = move |request: Request| {
            if let Err(error) = joining.came(Uuid::from_bytes(request.token), Second::Verbs(request)) {
                warn!(%error, "an RDMA connection is turned down");
            }
        };
        VerbsDoor::open(Rdma::from(&*config.rdma), came)
            .map_err(io_error("cannot start the door for RDMA"))?
    };
    let attacher = Arc::new(Attacher {
        welcome,
        wal: wal.clone(),
        table: table_region,
        commit: commit.clone(),
        stop: stop.clone(),
        closing: closing.clone(),
        joining,
        verbs,
        conversing: Default::default(),
    });
    let host_door = host_listener.map(|listener| {
        let attacher = attacher.clone();
        std::thread::spawn(move || attach::listen_on_host(listener, &attacher))
    });
    let service = Arc::new(Rw {
        commit: commit.clone(),
        wal: wal.clone(),
        attacher: attacher.clone(),
        counters: Counters::default(),
        timer,
    });

    runtime.block_on(async {
        let listener = server.listen()?;
        let sessions =
            tokio::spawn(serve(listener, service, config.common.clone(), entry_bytes_max, stop.clone()));
        if let Some(path) = &config.common.ready_file {
            write_ready_file(path, &address)?;
        }
        info!(%address, epoch = %wal.epoch(), "serving");
        terminated().await.map_err(io_error("cannot wait for signals"))?;
        stop.stop();
        let ended = sessions.await;
        // Also what nobody waits for any more. The close record then follows only what is flushed, and is not
        // waited for under the writer's lock, which the flusher needs.
        commit.visible().reached(wal.appended()).await;
        ended.map_err(|e| StartError::Io { doing: "sessions", source: std::io::Error::other(e) })
    })?;

    // In order: nobody writes any more; the log ends with a record that says so; disk and ROs get it; then the doors close.
    match writer.close() {
        Ok(end) => info!(%end, "the log is closed"),
        Err(error) => warn!(%error, "the log ends without a close record"),
    }
    flusher.stop();
    closing.stop();
    commit.replicas.ring_all();
    commit.replicas.part();
    attacher.verbs.shut();
    if let Some(door) = host_door {
        // Wakes the listener, which then sees that it is to stop. Where somebody has taken the socket away nothing wakes it: it ends with
        // the process.
        match UnixStream::connect(&socket) {
            Ok(_) => {
                if door.join().is_err() {
                    error!("the host's door panicked");
                }
                if let Err(error) = std::fs::remove_file(&socket) {
                    warn!(%error, socket = %socket.display(), "cannot remove the socket");
                }
            }
            Err(error) => {
                warn!(%error, socket = %socket.display(), "the socket for ROs of this host is gone")
            }
        }
    }
    info!("stopped");
    Ok(())
}

async fn serve(listener: Listener, service: Arc<Rw>, common: Common, entry_bytes_max: usize, stop: Stop) {
    listener.run(service, &common, entry_bytes_max, stop).await;
}

/// The UNIX socket over which ROs of this host get shared memory; without it they use tcp, and are told why.
fn host_listener(socket: &Path) -> Option<UnixListener> {
    // A socket of a process that is gone: the data directory's lock says that nobody else uses it.
    let _ = std::fs::remove_file(socket);
    match UnixListener::bind(socket) {
        Ok(listener) => Some(listener),
        Err(error) => {
            warn!(%error, socket = %socket.display(), "no shared memory for ROs on this host; they use tcp");
            None
        }
    }
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()).display().to_string()
}
