//! What a node says of itself: the answer to [`Request::Status`](crate::request::Request::Status), as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Epoch, Lsn};

/// What a node does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Orders writes.
    Rw,
    /// Answers reads.
    Ro,
}

/// A node: who it is, where it stands, how it does (E5).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// RW or RO.
    pub role: Role,
    /// The node's name.
    pub name: String,
    /// Where clients reach it.
    pub address: String,
    /// The cluster's name.
    pub cluster: String,
    /// The cluster; none on an RO that never met its RW.
    pub cluster_id: Option<Uuid>,
    /// The program's version.
    pub version: String,
    /// Seconds since the process started.
    pub uptime_s: u64,
    /// The epoch it is in.
    pub epoch: Epoch,
    /// Every position that it has.
    pub positions: Positions,
    /// Shards in the state that reads see.
    pub shards: u64,
    /// Entries in it.
    pub entries: u64,
    /// Bytes of their data.
    pub data_bytes: u64,
    /// Clients' connections that are open.
    pub connections: u64,
    /// Reads by how they were served.
    pub served: BTreeMap<String, u64>,
    /// Reads that were not served in time.
    pub timed_out: u64,
    /// Strong reads answered.
    pub strong_reads: u64,
    /// Timestamps fetched from the RW.
    pub fetches: u64,
    /// Whether writes are refused because the RW's disk is full.
    #[serde(default)]
    pub disk_full: bool,
    /// On the RW: every RO that is attached.
    #[serde(default)]
    pub replicas: Vec<ReplicaStatus>,
    /// On an RO: its RW.
    #[serde(default)]
    pub upstream: Option<UpstreamStatus>,
}

/// Positions in the log. Which node has which: DESIGN's *append/flushed/visible* (RW), *received/applied* (RO).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Positions {
    /// RW: copied into the ring.
    pub appended: Option<Lsn>,
    /// RW: on its disk. RO: as last heard.
    pub flushed: Option<Lsn>,
    /// RW: stamped and readable.
    pub visible: Option<Lsn>,
    /// RO: received and verified without a gap.
    pub received: Option<Lsn>,
    /// RO: in the state that reads see.
    pub applied: Option<Lsn>,
}

/// An RO as its RW sees it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Its name.
    pub name: String,
    /// Where its clients reach it.
    pub address: String,
    /// By which transport it is written to.
    pub transport: String,
    /// Why not by a better one; empty if there is none.
    pub why: String,
    /// Written into its ring up to here.
    pub shipped: Lsn,
    /// Where the bytes came from last: "ring", or "segments" while it is more than a ring behind.
    pub source: String,
    /// It has received up to here.
    pub received: Lsn,
    /// It has applied up to here.
    pub applied: Lsn,
    /// Bytes of log that it has not applied.
    pub lag_bytes: u64,
    /// ms since it last wrote its progress.
    pub silent_ms: u64,
}

/// An RW as one of its ROs sees it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct UpstreamStatus {
    /// The address it attaches to.
    pub address: String,
    /// Whether it is attached.
    pub connected: bool,
    /// By which transport; empty while it is not attached.
    pub transport: String,
    /// Why not by a better one, or why it is not attached.
    pub why: String,
    /// ms for which it may still read strongly without hearing from the RW.
    pub lease_ms: u64,
    /// Bytes of log that it knows to be visible on the RW and has not applied.
    pub lag_bytes: u64,
    /// How long ago its state was the RW's, ms at most; none if it never was.
    pub lag_ms: Option<u64>,
}
