//! timestamp
