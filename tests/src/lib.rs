//! Real clusters of real processes, what can befall them, and what their clients may then see.
//!
//! - [`cluster`] starts the built `rw-node` and `ro-node` and does to them what operators, kernels and power supplies do.
//! - [`proxy`] is a network between two nodes that can be held up and cut.
//! - [`history`] records what clients asked and were told, and decides whether that was linearizable.
//! - [`load`] keeps clients busy meanwhile; [`snapshot`] is all that a node holds.
//!
//! The tests themselves are in `tests/`, a file for each topic. They wait for conditions, never for time.

pub mod cluster;
pub mod proxy;
pub mod history;
pub mod load;
pub mod snapshot;
