use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use headwater_protocol::request::Request;
use headwater_protocol::response::Response;

/// A request as it reaches a node.
#[derive(Debug)]
pub struct Call {
    /// What is asked.
    pub request: Request,
    /// Read from the clock after the request's last byte had arrived (R1).
    pub arrival: Instant,
    /// When the client stops waiting.
    pub deadline: Instant,
}

/// How a request is answered.
pub enum Answer {
    /// At once.
    Now(Response),
    /// After everything that is ready now has had its turn: then what has arrived by then shares what it needs.
    AfterTurn(Next),
    /// When something has happened; by its deadline at the latest.
    Later(BoxFuture<'static, Response>),
    /// Many times, until the stream ends.
    Many(BoxStream<'static, Response>),
}

/// What goes on when its turn comes.
pub type Next = Box<dyn FnOnce() -> Answer + Send>;

/// A node's answers: the RW's, or an RO's.
pub trait Service: Send + Sync + 'static {
    /// Answers a client's request. Called on a session's task, in the order of the connection's requests; must not block.
    fn call(self: &Arc<Self>, call: Call) -> Answer;

    /// Takes a connection on which somebody wants to attach as an RO; blocking, opening already exchanged.
    fn attach(self: &Arc<Self>, stream: TcpStream);

    /// Says how many clients' connections are open.
    fn connections(&self, open: u64);
}
