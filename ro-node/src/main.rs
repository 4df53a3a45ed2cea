//! The read-only node: follows the RW's log in its ring, and answers reads as strong as the RW's own.
//!
//! The path of the log: `follow` (link) → `intake` (ring) → `apply` (gate) → the shard log. The path of a read: `service` → `read` →
//! `upstream` (timestamps) → the shard log.

mod config;
mod apply;
mod intake;
mod upstream;
mod state;
mod gather;
mod follow;
mod read;
mod service;

use std::process::ExitCode;
use std::sync::Arc;

use headwater_attach::Peer;
use headwater_node::config::{Common, ConfigError, load};
use headwater_node::{Server, ServerError, Stop, init_logging, terminated, write_ready_file};
use headwater_protocol::limits::ENTRY_BYTES_MAX_DEFAULT;
use headwater_protocol::replication::Hello;
use tracing::info;

use crate::config::Config;
use crate::follow::{Follow, FollowError, Follower};
use crate::service::Ro;
use crate::state::State;

#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Follow(#[from] FollowError),
    #[error("{doing}: {source}")]
    Io { doing: &'static str, source: std::io::Error },
}

impl RunError {
    fn io(doing: &'static str) -> impl FnOnce(std::io::Error) -> RunError {
        move |source| RunError::Io { doing, source }
    }
}

fn main() -> ExitCode {
    let command = clap::Command::new("ro-node").about(
        "Headwater's read-only node: follows the read-write node and answers reads as strong as its own.",
    );
    let ran = load(command, &[&Common::SETTINGS, &Config::SETTINGS], &Config::default())
        .and_then(|config| {
            init_logging(&config.common.log).map_err(ConfigError)?;
            Ok(config)
        })
        .map_err(RunError::from)
        .and_then(run);
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ro-node: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(config: Config) -> Result<(), RunError> {
    let rw = config.validate()?;
    headwater_node::exit_on_panic();
    headwater_node::raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("ro-sessions")
        .build()
        .map_err(RunError::io("cannot start the sessions' threads"))?;
    let server = runtime.block_on(Server::bind(&config.common.listen))?;
    let address = config.common.advertise.clone().unwrap_or_else(|| server.address().to_string());

    let state = Arc::new(State::new(rw.clone()));
    let stop = Stop::default();
    let hello = Hello {
        node: state.node,
        name: config.common.name.clone(),
        address: address.clone(),
        cluster: config.common.cluster.clone(),
        cluster_id: None,
    };
    let peer = Peer { rw, hello, rdma: config.rdma };
    let follow = Follow { state: state.clone(), peer, transport: config.transport };
    let ended = stop.clone();
    let follower =
        Follower::start(follow, move || ended.stop()).map_err(RunError::io("cannot start the follower"))?;
    let service = Arc::new(Ro {
        state,
        name: config.common.name.clone(),
        address: address.clone(),
        cluster: config.common.cluster.clone(),
    });

    let served = runtime.block_on(async {
        let listener = server.listen()?;
        let sessions = {
            let (common, stop) = (config.common.clone(), stop.clone());
            tokio::spawn(async move { listener.run(service, &common, ENTRY_BYTES_MAX_DEFAULT, stop).await })
        };
        if let Some(path) = &config.common.ready_file {
            write_ready_file(path, &address)?;
        }
        info!(%address, "serving");
        tokio::select! {
            signal = terminated() => signal.map_err(RunError::io("cannot wait for signals"))?,
            () = stop.stopped() => {}
        }
        stop.stop();
        sessions.await.map_err(|e| RunError::Io { doing: "sessions", source: std::io::Error::other(e) })
    });
    // Its error is the cause of everything else that went wrong.
    follower.stop()?;
    served?;
    info!("stopped");
    Ok(())
}
