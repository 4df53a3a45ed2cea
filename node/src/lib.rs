//! What RW and RO have in common: configuration, the listener, clients' sessions, watches, counters, an orderly stop.
//!
//! A node is a [`Service`]: it says how a request is answered. Everything between the socket and that is here.

mod service;
pub mod config;
mod logging;
mod server;
mod session;
mod read;
mod watch;
mod counters;
mod stop;
mod limits;
mod fault;

pub use counters::{Counters, Timer};
pub use fault::{EXIT_FAULT, exit_on_panic};
pub use limits::raise_open_files;
pub use logging::init_logging;
pub use read::Query;
pub use server::{ACCEPT_PAUSE, Listener, Server, ServerError, write_ready_file};
pub use service::{Answer, Call, Next, Service};
pub use stop::{Stop, terminated};
pub use watch::watch;
