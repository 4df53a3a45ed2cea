//! What RW and RO have in common: configuration, the listener, clients' sessions, watches, counters, an orderly stop.
//!
//! A node is a [`Service`]: it says how a request is answered. Everything between the socket and that is here.

mod service;
pub mod config;
mod logging;
mod server;
mod session;
mod watch;
mod counters;
mod stop;

pub use counters::{Counters, Timer};
pub use logging::init_logging;
pub use server::{Server, ServerError, write_ready_file};
pub use service::{Answer, Call, Service};
pub use stop::{Stop, terminated};
pub use watch::watch;
