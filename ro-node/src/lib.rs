//! ro-node
