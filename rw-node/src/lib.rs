//! rw-node
