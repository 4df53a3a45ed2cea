//! The nodes of the cluster as this client knows them: who they are, which is the RW, which answer.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use headwater_protocol::Lsn;
use headwater_protocol::status::{NodeStatus, Role};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};
use tracing::{debug, info};

use crate::client::ReadFrom;
use crate::operation::{self, Operation};
use crate::socket::expiry;
use crate::{ClientError, Connection};

/// How long a node that failed is asked last.
const FAILED_FOR: Duration = Duration::from_secs(1);

/// How long a node may take to say what it is.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// How old what is known may grow before reads have it looked at again, so that nodes that came or came back are used.
const KNOWN_FOR: Duration = Duration::from_secs(10);

/// One node, and the connection to it that all requests of this client share.
pub(crate) struct Node {
    pub(crate) address: String,
    connection: tokio::sync::Mutex<Option<Connection>>,
    failed_until: Mutex<Option<Instant>>,
}

impl Node {
    fn new(address: &str) -> Arc<Node> {
        Arc::new(Node {
            address: address.into(),
            connection: Default::default(),
            failed_until: Default::default(),
        })
    }

    /// Carries out one operation on this node, on a new connection where there is none.
    pub(crate) async fn perform<T>(
        &self,
        operation: Operation<T>,
        expires: Instant,
    ) -> Result<(T, Option<Lsn>), ClientError> {
        let result = match self.connection(expires).await {
            Ok(connection) => {
                let left = expires.saturating_duration_since(Instant::now());
                connection.perform(operation, left).await
            }
            Err(error) => Err(error),
        };
        match &result {
            Err(error) if error.is_of_the_node() => {
                debug!(node = self.address, %error, "a node failed and is asked last for a while");
                *self.failed_until.lock() = Some(Instant::now() + FAILED_FOR);
            }
            _ => *self.failed_until.lock() = None,
        }
        result
    }

    async fn connection(&self, expires: Instant) -> Result<Connection, ClientError> {
        // Held while it is opened: whoever else wants it waits for that one.
        let mut connection = timeout_at(expires, self.connection.lock()).await.map_err(|_| {
            ClientError::Unreachable { address: self.address.clone(), why: "it does not answer".into() }
        })?;
        match connection.as_ref().filter(|connection| !connection.is_closed()) {
            Some(open) => Ok(open.clone()),
            None => {
                let left = expires.saturating_duration_since(Instant::now());
                Ok(connection.insert(Connection::open(&self.address, left).await?).clone())
            }
        }
    }

    fn has_failed(&self) -> bool {
        self.failed_until.lock().is_some_and(|until| Instant::now() < until)
    }
}

/// What was learnt when the nodes were asked last.
struct Known {
    /// Every node once; the named ones first.
    nodes: Vec<Arc<Node>>,
    rw: Option<Arc<Node>>,
    ros: Vec<Arc<Node>>,
    /// When the asking began.
    asked: Instant,
}

/// Every node known, named or discovered.
pub(crate) struct Nodes {
    named: Vec<Arc<Node>>,
    known: Mutex<Known>,
    /// Held while the nodes are asked.
    asking: tokio::sync::Mutex<()>,
    turn: AtomicUsize,
}

type Answers = Vec<(Arc<Node>, Result<NodeStatus, ClientError>)>;

impl Nodes {
    /// None of them asked yet.
    pub(crate) fn named(addresses: &[String]) -> Nodes {
        let mut named: Vec<Arc<Node>> = Vec::new();
        for address in addresses {
            if !named.iter().any(|node| node.address == *address) {
                named.push(Node::new(address));
            }
        }
        let known = Known { nodes: named.clone(), rw: None, ros: Vec::new(), asked: Instant::now() };
        Nodes { named, known: Mutex::new(known), asking: Default::default(), turn: AtomicUsize::new(0) }
    }

    /// The RW, if one is known.
    pub(crate) fn rw(&self) -> Option<Arc<Node>> {
        self.known.lock().rw.clone()
    }

    /// The nodes to ask a read of, in order: those that may answer it in turn, the ones that failed lately last, and then,
    /// if `or_rw`, the RW.
    pub(crate) fn readers(&self, from: ReadFrom, or_rw: bool) -> Vec<Arc<Node>> {
        let known = self.known.lock();
        let rw = known.rw.iter();
        let mut readers: Vec<_> = match from {
            ReadFrom::Named => self.named.clone(),
            ReadFrom::Replicas if !known.ros.is_empty() => known.ros.clone(),
            ReadFrom::Replicas | ReadFrom::Rw => rw.clone().cloned().collect(),
        };
        if !readers.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % readers.len();
            readers.rotate_left(turn);
        }
        readers.sort_by_key(|node| node.has_failed());
        if or_rw
            && let Some(rw) = known.rw.as_ref()
            && !readers.iter().any(|node| Arc::ptr_eq(node, rw))
        {
            readers.push(rw.clone());
        }
        readers
    }

    /// Takes a node's word for where the RW is.
    pub(crate) fn follow_hint(&self, rw: &str) {
        let mut known = self.known.lock();
        let node = known.nodes.iter().find(|node| node.address == rw).cloned();
        let node = node.unwrap_or_else(|| Node::new(rw));
        if !known.nodes.iter().any(|other| Arc::ptr_eq(other, &node)) {
            known.nodes.push(node.clone());
        }
        known.rw = Some(node);
    }

    /// Asks the nodes again what they are, unless somebody began to after `since`.
    pub(crate) async fn learn_since(&self, since: Instant, expires: Instant) {
        let Ok(_asking) = timeout_at(expires, self.asking.lock()).await else { return };
        if self.known.lock().asked <= since {
            self.ask_all(expires).await;
        }
    }

    /// Has the nodes asked again, beside the caller, if that was long ago.
    pub(crate) fn refresh(self: &Arc<Self>) {
        let mut known = self.known.lock();
        if known.asked.elapsed() > KNOWN_FOR {
            // So that one read of many starts it.
            known.asked = Instant::now();
            let nodes = self.clone();
            tokio::spawn(async move { nodes.learn(expiry(2 * STATUS_TIMEOUT)).await });
        }
    }

    /// Asks every node what it is, and every node that they speak of; learns from it.
    pub(crate) async fn learn(&self, expires: Instant) -> Answers {
        let _asking = self.asking.lock().await;
        self.ask_all(expires).await
    }

    async fn ask_all(&self, expires: Instant) -> Answers {
        let began = Instant::now();
        let mut answers = Answers::new();
        let mut unasked = self.named.clone();
        unasked.extend(self.known.lock().nodes.iter().filter(|node| !self.is_named(node)).cloned());
        // Also those whose node had answered by another address.
        let mut asked: HashSet<String> = HashSet::new();
        while !unasked.is_empty() {
            asked.extend(unasked.iter().map(|node| node.address.clone()));
            let mentioned = unasked.into_iter().map(|node| async {
                let expires = expires.min(Instant::now() + STATUS_TIMEOUT);
                let status = node.perform(operation::status(), expires).await.map(|(status, _)| status);
                (node, status)
            });
            for (node, status) in join_all(mentioned).await {
                if !answers.iter().any(|(_, other)| is_same(other, &status)) {
                    answers.push((node, status));
                }
            }
            let mentioned = mentions(&answers).into_iter().filter(|address| !asked.contains(address));
            unasked = mentioned.map(|address| Node::new(&address)).collect();
        }
        self.take_in(&mut answers, began);
        answers
    }

    fn take_in(&self, answers: &mut Answers, began: Instant) {
        let statuses = || answers.iter().filter_map(|(node, status)| Some((node, status.as_ref().ok()?)));
        let of_role = |role| statuses().filter(move |(_, status)| status.role == role);
        // A deposed RW may not know it yet: the newest epoch is right.
        let rw = of_role(Role::Rw).max_by_key(|(_, status)| status.epoch).map(|(node, _)| node.clone());
        // One that is down is known by what its ROs say.
        let upstream = of_role(Role::Ro).max_by_key(|(_, status)| status.epoch).and_then(|(_, status)| {
            let upstream = status.upstream.as_ref()?;
            answers.iter().map(|(node, _)| node).find(|node| node.address == upstream.address).cloned()
        });
        let rw = rw.or(upstream);
        let ros: Vec<_> = of_role(Role::Ro).map(|(node, _)| node.clone()).collect();
        let spoken_of: HashSet<&str> = statuses().flat_map(|(_, status)| mentioned_by(status)).collect();
        let stays = |node: &Arc<Node>, is_up: bool| {
            is_up || spoken_of.contains(&node.address[..]) || self.is_named(node)
        };
        let nodes: Vec<_> = answers
            .iter()
            .filter(|(node, status)| stays(node, status.is_ok()))
            .map(|(node, _)| node.clone())
            .collect();
        answers.retain(|(node, _)| nodes.iter().any(|other| Arc::ptr_eq(other, node)));

        let mut known = self.known.lock();
        let address = |rw: &Option<Arc<Node>>| rw.as_ref().map(|node| node.address.clone());
        if address(&known.rw) != address(&rw) {
            info!(before = address(&known.rw), now = address(&rw), "the RW is another node");
        }
        *known = Known { nodes, rw, ros, asked: began };
    }

    fn is_named(&self, node: &Arc<Node>) -> bool {
        self.named.iter().any(|named| Arc::ptr_eq(named, node))
    }

    /// The addresses known, for people.
    pub(crate) fn addresses(&self) -> String {
        let known = self.known.lock();
        known.nodes.iter().map(|node| &node.address[..]).collect::<Vec<_>>().join(", ")
    }
}

/// Whether both are one node's, reached by two addresses.
fn is_same(one: &Result<NodeStatus, ClientError>, other: &Result<NodeStatus, ClientError>) -> bool {
    let who = |status: &NodeStatus| (status.role, status.name.clone(), status.address.clone());
    matches!((one, other), (Ok(one), Ok(other)) if who(one) == who(other))
}

/// The addresses of other nodes in a node's status.
fn mentioned_by(status: &NodeStatus) -> impl Iterator<Item = &str> {
    let replicas = status.replicas.iter().map(|replica| &replica.address[..]);
    replicas
        .chain(status.upstream.iter().map(|upstream| &upstream.address[..]))
        .filter(|address| !address.is_empty())
}

/// The addresses in the answers that nobody was asked by.
fn mentions(answers: &Answers) -> HashSet<String> {
    let is_asked = |address: &str| {
        answers.iter().any(|(node, status)| {
            node.address == address || status.as_ref().is_ok_and(|status| status.address == address)
        })
    };
    let statuses = answers.iter().filter_map(|(_, status)| status.as_ref().ok());
    statuses.flat_map(mentioned_by).filter(|address| !is_asked(address)).map(String::from).collect()
}
