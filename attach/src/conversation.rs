//! The conversation, from this side (`headwater_protocol::replication`).

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;

use headwater_protocol::frame::{OPENING_BYTES, REPLICATION, VERSION, opening, read_opening};
use headwater_protocol::replication::{Hello, STEP_MAX, ToRo, ToRw, Welcome, receive, send};
use uuid::Uuid;

use crate::choose::layout;
use crate::error::AttachError;

/// A connection on which the RW has said who it is.
pub(crate) struct Conversation<S> {
    pub(crate) address: String,
    pub(crate) stream: S,
    pub(crate) welcome: Welcome,
}

impl<S: Read + Write> Conversation<S> {
    fn begin(address: &str, mut stream: S, hello: &Hello) -> Result<Conversation<S>, AttachError> {
        match ask(&mut stream, address, &ToRw::Hello(hello.clone()))? {
            ToRo::Welcome(welcome) => {
                let layout = layout(&welcome).validate().err().map(|error| error.to_string());
                match welcome.nonsense().or(layout) {
                    None => Ok(Conversation { address: address.to_owned(), stream, welcome: *welcome }),
                    Some(what) => Err(AttachError::Nonsense { address: address.to_owned(), what }),
                }
            }
            _ => Err(AttachError::Unexpected { address: address.to_owned() }),
        }
    }

    /// Asks for a link, and gives the token that names it.
    pub(crate) fn ask_for(&mut self, what: ToRw) -> Result<Uuid, AttachError> {
        match ask(&mut self.stream, &self.address, &what)? {
            ToRo::Attached { token } => Ok(token),
            _ => Err(AttachError::Unexpected { address: self.address.clone() }),
        }
    }
}

/// Begins one by TCP.
pub(crate) fn by_tcp(address: &str, hello: &Hello) -> Result<Conversation<TcpStream>, AttachError> {
    Conversation::begin(address, dial(address)?, hello)
}

/// Begins one by the RW's UNIX socket.
pub(crate) fn by_unix(socket: &str, hello: &Hello) -> Result<Conversation<UnixStream>, AttachError> {
    let io = AttachError::io(socket);
    let stream = UnixStream::connect(socket).map_err(&io)?;
    stream.set_read_timeout(Some(STEP_MAX)).map_err(&io)?;
    stream.set_write_timeout(Some(STEP_MAX)).map_err(&io)?;
    Conversation::begin(socket, stream, hello)
}

/// The second connection of the tcp link that `token` names.
pub(crate) fn join(address: &str, token: Uuid) -> Result<TcpStream, AttachError> {
    let mut stream = dial(address)?;
    send(&mut stream, &ToRw::Join { token }).map_err(AttachError::io(address))?;
    Ok(stream)
}

/// Connects and exchanges openings.
fn dial(address: &str) -> Result<TcpStream, AttachError> {
    let io = AttachError::io(address);
    let mut failure = io::Error::other("the name has no address");
    for resolved in address.to_socket_addrs().map_err(&io)? {
        match TcpStream::connect_timeout(&resolved, STEP_MAX) {
            Ok(stream) => return open(stream, address),
            Err(error) => failure = error,
        }
    }
    Err(io(failure))
}

fn open(mut stream: TcpStream, address: &str) -> Result<TcpStream, AttachError> {
    let io = AttachError::io(address);
    stream.set_nodelay(true).map_err(&io)?;
    stream.set_read_timeout(Some(STEP_MAX)).map_err(&io)?;
    stream.set_write_timeout(Some(STEP_MAX)).map_err(&io)?;
    stream.write_all(&opening(REPLICATION)).map_err(&io)?;
    let mut answer = [0; OPENING_BYTES];
    stream.read_exact(&mut answer).map_err(|error| match error.kind() {
        // As a node does that stops, or has too many connections, and as many do that speak something else.
        io::ErrorKind::UnexpectedEof => io(io::Error::other("it hangs up; is that a Headwater node?")),
        io::ErrorKind::WouldBlock => io(io::Error::other("it says nothing; is that a Headwater node?")),
        _ => io(error),
    })?;
    match read_opening(&answer) {
        (REPLICATION, VERSION) => Ok(stream),
        (REPLICATION, version) => Err(AttachError::Version { address: address.to_owned(), version }),
        _ => Err(AttachError::NotHeadwater { address: address.to_owned() }),
    }
}

fn ask(stream: &mut (impl Read + Write), address: &str, message: &ToRw) -> Result<ToRo, AttachError> {
    let io = AttachError::io(address);
    send(stream, message).map_err(&io)?;
    match receive(stream).map_err(&io)? {
        ToRo::Refused { refusal, message } => {
            Err(AttachError::Refused { address: address.to_owned(), refusal, message })
        }
        answer => Ok(answer),
    }
}
