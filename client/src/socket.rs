//! A socket to a node: opened, its other end known to be a node of this version, its frames split.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use headwater_protocol::frame::{self, CLIENT, Frame, OPENING_BYTES, VERSION};
use headwater_protocol::limits::FRAME_BYTES_MAX;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::{Instant, timeout_at};

use crate::ClientError;

/// How long a host may be silent while it owes an acknowledgement, before the connection counts as lost: a host that lost
/// its power ends no connection.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Room made for the next read of the socket, bytes.
const READ_BYTES: usize = 64 << 10;

/// The moment `deadline` from now; a year for one that is further away.
pub(crate) fn expiry(deadline: Duration) -> Instant {
    Instant::now() + deadline.min(Duration::from_secs(365 * 86_400))
}

/// Connects to `host:port` and exchanges openings. Every error is determinate.
pub(crate) async fn open(address: &str, expires: Instant) -> Result<TcpStream, ClientError> {
    if !address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) {
        return Err(ClientError::InvalidArgument(format!("an address is host:port, not {address:?}")));
    }
    let unreachable = |why: String| ClientError::Unreachable { address: address.into(), why };
    let mut stream = timeout_at(expires, connect(address))
        .await
        .map_err(|_| unreachable("it does not answer".into()))?
        .map_err(|e| unreachable(e.to_string()))?;
    timeout_at(expires, exchange_openings(address, &mut stream))
        .await
        .map_err(|_| unreachable("it accepts connections, but does not say what it is".into()))??;
    Ok(stream)
}

async fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_user_timeout(Some(SILENCE_MAX))?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(SILENCE_MAX).with_interval(SILENCE_MAX / 4).with_retries(4),
    )?;
    Ok(stream)
}

async fn exchange_openings(address: &str, stream: &mut TcpStream) -> Result<(), ClientError> {
    let unreachable = |e: io::Error| ClientError::Unreachable { address: address.into(), why: e.to_string() };
    stream.write_all(&frame::opening(CLIENT)).await.map_err(unreachable)?;
    let mut bytes = [0; OPENING_BYTES];
    let mut got = 0;
    while got < OPENING_BYTES {
        got += match stream.read(&mut bytes[got..]).await.map_err(unreachable)? {
            0 => return Err(unreachable(io::Error::other("it closed the connection at once"))),
            more => more,
        };
        // At the first wrong byte: what greets with less than an opening would be waited for in vain.
        let known = got.min(CLIENT.len());
        if bytes[..known] != CLIENT[..known] {
            let greeting = bytes[..got].escape_ascii();
            let why = format!("is not a Headwater node: it says \"{greeting}\"");
            return Err(ClientError::NotHeadwater { address: address.into(), why });
        }
    }
    let (_, version) = frame::read_opening(&bytes);
    if version != VERSION {
        let why = format!("speaks version {version} of the protocol, this client version {VERSION}");
        return Err(ClientError::NotHeadwater { address: address.into(), why });
    }
    Ok(())
}

/// The frames that a node sends.
pub(crate) struct Frames {
    socket: OwnedReadHalf,
    buffer: BytesMut,
}

impl Frames {
    pub(crate) fn new(socket: OwnedReadHalf) -> Frames {
        Frames { socket, buffer: BytesMut::new() }
    }

    /// The next frame; or why there is none any more.
    pub(crate) async fn next(&mut self) -> Result<Frame, String> {
        loop {
            if let Some(frame) =
                frame::split(&mut self.buffer, FRAME_BYTES_MAX).map_err(|malformed| malformed.to_string())?
            {
                return Ok(frame);
            }
            if self.buffer.capacity() == self.buffer.len() {
                self.buffer.reserve(READ_BYTES);
            }
            if self.socket.read_buf(&mut self.buffer).await.map_err(|e| e.to_string())? == 0 {
                return Err("the node closed it".into());
            }
        }
    }
}
