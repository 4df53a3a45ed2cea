use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headwater_protocol::status::NodeStatus;
use headwater_protocol::{Consistency, Error, ErrorKind, Lsn, Seqno, ShardName};
use tokio::time::{Instant, sleep_until};

use crate::ClientError;
use crate::nodes::Nodes;
use crate::operation::{self, Cas, Head, Operation, Scan, Shards, Truncated};
use crate::session::Session;
use crate::socket::expiry;
use crate::watch::Watch;

/// Which nodes reads go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReadFrom {
    /// The ROs in turn; the RW if there is none.
    #[default]
    Replicas,
    /// The RW.
    Rw,
    /// The nodes of [`Options::nodes`] in turn, whatever they are.
    Named,
}

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Addresses (`host:port`) of some nodes. The others are learnt from them.
    pub nodes: Vec<String>,
    /// How long one operation may take, all its retries together.
    pub deadline: Duration,
    /// Which nodes reads go to.
    pub read_from: ReadFrom,
    /// Whether the RW is asked for a read that none of those nodes could serve.
    pub forward_to_rw: bool,
}

impl Default for Options {
    /// No nodes yet, 5 s, reads from replicas, forwarded to the RW where they must be.
    fn default() -> Options {
        Options {
            nodes: Vec::new(),
            deadline: Duration::from_secs(5),
            read_from: ReadFrom::Replicas,
            forward_to_rw: true,
        }
    }
}

/// A client of a cluster: routing, retries, fail-over, and a session's position.
///
/// - A read is asked again, of another node too, until it is answered or the deadline is over; never for less than was asked.
/// - A write is sent again only where it certainly did not happen. After an indeterminate error it is returned.
/// - Within a session no read shows less than an earlier answer did, writes included.
///
/// A clone shares connections and session; [`Client::session`] shares connections only.
#[derive(Clone)]
pub struct Client {
    options: Arc<Options>,
    nodes: Arc<Nodes>,
    session: Arc<Session>,
}

impl Client {
    /// Asks the named nodes who they are and which others there are. At least one must be reachable.
    pub async fn connect(options: Options) -> Result<Client, ClientError> {
        if options.nodes.is_empty() {
            return Err(ClientError::InvalidArgument("no node's address is given".into()));
        }
        let nodes = Nodes::named(&options.nodes);
        let answers = nodes.learn(expiry(options.deadline)).await;
        let is_reached = answers.iter().any(|(_, status)| status.is_ok());
        let mut errors: Vec<_> = answers.into_iter().filter_map(|(_, status)| status.err()).collect();
        // First what whoever gave the addresses can put right.
        errors.sort_by_key(ClientError::is_transient);
        match errors.into_iter().next() {
            Some(error @ ClientError::InvalidArgument(_)) => return Err(error),
            Some(error) if !is_reached => return Err(error),
            _ => {}
        }
        Ok(Client { options: Arc::new(options), nodes: Arc::new(nodes), session: Arc::default() })
    }

    /// A client with a position of its own.
    pub fn session(&self) -> Client {
        Client { session: Arc::default(), ..self.clone() }
    }

    /// The largest LSN that any answer in this session reflected.
    pub fn position(&self) -> Lsn {
        self.session.position()
    }

    /// The entry with the largest seqno.
    pub async fn head(&self, shard: &ShardName, consistency: Consistency) -> Result<Head, ClientError> {
        self.read(consistency, |consistency| operation::head(shard, consistency), self.expiry()).await
    }

    /// One page of entries with seqno ≥ `from`, at most `limit` of them and at most
    /// [`SCAN_BYTES_MAX`](headwater_protocol::limits::SCAN_BYTES_MAX) bytes of data.
    pub async fn scan(
        &self,
        shard: &ShardName,
        from: Seqno,
        limit: u32,
        consistency: Consistency,
    ) -> Result<Scan, ClientError> {
        let operation = |consistency| operation::scan(shard, from, limit, consistency);
        self.read(consistency, operation, self.expiry()).await
    }

    /// One page of names that begin with `prefix` and come after `after`, at most `limit` of them.
    pub async fn shards(
        &self,
        prefix: &str,
        after: &str,
        limit: u32,
        consistency: Consistency,
    ) -> Result<Shards, ClientError> {
        let operation = |consistency| operation::shards(prefix, after, limit, consistency);
        self.read(consistency, operation, self.expiry()).await
    }

    /// Appends `data` iff `expected` is the head, or the shard was never written and `expected` is none.
    pub async fn compare_and_set(
        &self,
        shard: &ShardName,
        expected: Option<Seqno>,
        data: Bytes,
    ) -> Result<Cas, ClientError> {
        self.write(|| operation::compare_and_set(shard, expected, data.clone()), self.expiry()).await
    }

    /// Appends `data` after whatever is the head by then. Gives its seqno and the end of its record.
    ///
    /// After an indeterminate error it may be in the log; asked again it could be there twice.
    pub async fn append(&self, shard: &ShardName, data: Bytes) -> Result<(Seqno, Lsn), ClientError> {
        let expires = self.expiry();
        // A guess is enough: the compare-and-set checks it.
        let head = |consistency| operation::head(shard, consistency);
        let mut expected =
            self.read(Consistency::Eventual, head, expires).await?.entry.map(|entry| entry.seqno);
        loop {
            let write = || operation::compare_and_set(shard, expected, data.clone());
            match self.write(write, expires).await? {
                Cas::Committed(seqno, lsn) => return Ok((seqno, lsn)),
                Cas::Mismatch { head, .. } => expected = head,
            }
        }
    }

    /// First write of a shard, at `seqno`: for a log that begins past 0. Gives the end of its record.
    pub async fn begin(&self, shard: &ShardName, seqno: Seqno, data: Bytes) -> Result<Lsn, ClientError> {
        self.write(|| operation::begin(shard, seqno, data.clone()), self.expiry()).await
    }

    /// Removes entries below `cut`, never the head.
    pub async fn truncate(&self, shard: &ShardName, cut: Seqno) -> Result<Truncated, ClientError> {
        self.write(|| operation::truncate(shard, cut), self.expiry()).await
    }

    /// Every entry of the shard from `from` on, in order, as each becomes visible. Resumes by itself on another node.
    pub async fn watch(&self, shard: &ShardName, from: Seqno) -> Result<Watch, ClientError> {
        Ok(Watch::on_cluster(self.clone(), shard, from))
    }

    /// What every node known, named or discovered, says of itself; also with the RW down (E5).
    pub async fn status(&self) -> Vec<(String, Result<NodeStatus, ClientError>)> {
        let answers = self.nodes.learn(self.expiry()).await;
        answers.into_iter().map(|(node, status)| (node.address.clone(), status)).collect()
    }

    pub(crate) fn expiry(&self) -> Instant {
        expiry(self.options.deadline)
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    pub(crate) fn observe(&self, lsn: Lsn) {
        self.session.observe(lsn);
    }

    /// The addresses to read from, in the order in which they are asked.
    pub(crate) fn readers(&self) -> Vec<String> {
        let readers = self.nodes.readers(self.options.read_from, self.options.forward_to_rw);
        readers.iter().map(|node| node.address.clone()).collect()
    }

    async fn read<T>(
        &self,
        asked: Consistency,
        operation: impl Fn(Consistency) -> Operation<T>,
        expires: Instant,
    ) -> Result<T, ClientError> {
        self.nodes.refresh();
        let mut consistency = self.session.consistency(asked);
        let mut retries = Retries::until(expires);
        loop {
            let began = Instant::now();
            let readers = self.nodes.readers(self.options.read_from, self.options.forward_to_rw);
            let mut error = self.no_rw();
            for (at, node) in readers.iter().enumerate() {
                let left = expires.saturating_duration_since(Instant::now());
                if at > 0 && left.is_zero() {
                    // What the ones before said tells more than that there was no time to ask this one.
                    break;
                }
                let is_last = at + 1 == readers.len();
                let attempt_expires = Instant::now() + if is_last { left } else { left / 2 };
                let mut result = node.perform(operation(consistency), attempt_expires).await;
                if let Ok((_, lsn)) = &result
                    && matches!(consistency, Consistency::Bounded(_))
                    && *lsn < Some(self.position())
                {
                    // Within its bound, but behind what this session has seen.
                    consistency = Consistency::Strong;
                    result = node.perform(operation(consistency), attempt_expires).await;
                }
                match result {
                    Ok((answer, lsn)) => {
                        self.session.observe(lsn.unwrap_or_default());
                        return Ok(answer);
                    }
                    Err(failure) if failure.is_of_the_node() => error = failure,
                    Err(failure) => return Err(failure),
                }
            }
            if !retries.pause().await {
                return Err(error);
            }
            self.nodes.learn_since(began, expires).await;
        }
    }

    async fn write<T>(
        &self,
        operation: impl Fn() -> Operation<T>,
        expires: Instant,
    ) -> Result<T, ClientError> {
        let mut retries = Retries::until(expires);
        let mut hint_followed = false;
        loop {
            let began = Instant::now();
            let result = match self.nodes.rw() {
                Some(rw) => rw.perform(operation(), expires).await,
                None => Err(self.no_rw()),
            };
            let error = match result {
                Ok((answer, lsn)) => {
                    self.session.observe(lsn.unwrap_or_default());
                    return Ok(answer);
                }
                Err(error) => error,
            };
            match &error {
                ClientError::Refused(Error::NotWritable { rw }) if !rw.is_empty() && !hint_followed => {
                    hint_followed = true;
                    self.nodes.follow_hint(rw);
                    continue;
                }
                error if !may_write_again(error) => return Err(error.clone()),
                _ => {}
            }
            if !retries.pause().await {
                return Err(error);
            }
            if !matches!(error, ClientError::Refused(Error::Overloaded(_))) {
                self.nodes.learn_since(began, expires).await;
            }
        }
    }

    pub(crate) fn no_rw(&self) -> ClientError {
        ClientError::NoRw { nodes: self.nodes.addresses() }
    }
}

/// Whether a write that failed so certainly did not happen, and may succeed on the same cluster soon.
fn may_write_again(error: &ClientError) -> bool {
    match error {
        // There is room when somebody makes some.
        ClientError::Refused(Error::DiskFull) => false,
        ClientError::Refused(Error::NotWritable { .. }) | ClientError::NotHeadwater { .. } => true,
        error => error.is_transient() && error.kind() == ErrorKind::Determinate,
    }
}

/// The pauses between the attempts of one operation: each about twice as long as the one before, and never all clients at once.
pub(crate) struct Retries {
    expires: Instant,
    pause: Duration,
}

impl Retries {
    const FIRST: Duration = Duration::from_millis(5);
    const LONGEST: Duration = Duration::from_millis(500);

    pub(crate) fn until(expires: Instant) -> Retries {
        Retries { expires, pause: Retries::FIRST }
    }

    /// Gives it until then.
    pub(crate) fn prolong(&mut self, expires: Instant) {
        self.expires = expires;
    }

    /// Waits; false, at once, if there is no time for another attempt after it.
    pub(crate) async fn pause(&mut self) -> bool {
        let random = RandomState::new().hash_one(()) as f64 / u64::MAX as f64;
        let until = Instant::now() + self.pause.mul_f64(0.5 + random / 2.0);
        self.pause = (self.pause * 2).min(Retries::LONGEST);
        let is_time = until < self.expires;
        if is_time {
            sleep_until(until).await;
        }
        is_time
    }
}

#[cfg(test)]
mod tests;
