//! What a connection still has to send, however it is taken.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::IoSlice;

use bytes::{Buf, Bytes};
use common::{response, response_bytes};
use headwater_protocol::frame::Outgoing;
use headwater_protocol::response::{Reflects, Response};
use headwater_protocol::{Entry, Lsn, Seqno, Served};
use proptest::collection::vec;
use proptest::prelude::*;

fn out(responses: &[Response]) -> (Outgoing, Vec<u8>) {
    let (mut out, mut expected) = (Outgoing::default(), Vec::new());
    for (response, id) in responses.iter().zip(0..) {
        response.encode(id, &mut out);
        expected.extend_from_slice(&response_bytes(response, id));
    }
    (out, expected)
}

proptest! {
    /// By short and by long steps, within a chunk and over several, with more put in between.
    #[test]
    fn bytes_go_out_in_order(responses in vec(response(), 1..5), late in response(), steps in vec(1..4000_usize, 1..20)) {
        let (mut out, mut expected) = out(&responses);
        let mut got = Vec::new();
        let mut late = Some(late);
        for step in steps.into_iter().cycle() {
            prop_assert_eq!(out.remaining(), expected.len() - got.len());
            if !out.has_remaining() {
                match late.take() {
                    Some(late) => {
                        late.encode(99, &mut out);
                        expected.extend_from_slice(&response_bytes(&late, 99));
                    }
                    None => break,
                }
            }
            prop_assert!(!out.chunk().is_empty(), "a buffer with something left always has a chunk");
            let step = step.min(out.remaining());
            let mut piece = vec![0; step];
            out.copy_to_slice(&mut piece);
            got.extend_from_slice(&piece);
        }
        prop_assert_eq!(got, expected);
    }

    /// A gathered write sees the same bytes as one chunk after the other, or the first of them where it takes fewer.
    #[test]
    fn a_gathered_write_sees_the_first_bytes(responses in vec(response(), 0..5), skip: prop::sample::Index, places in 0..12_usize) {
        let (mut out, expected) = out(&responses);
        let skip = if expected.is_empty() { 0 } else { skip.index(expected.len()) };
        out.advance(skip);
        let mut slices = vec![IoSlice::new(&[]); places];
        let used = out.chunks_vectored(&mut slices);
        let seen = slices[..used].iter().flat_map(|slice| slice.to_vec()).collect::<Vec<_>>();
        prop_assert!(slices[..used].iter().all(|slice| !slice.is_empty()));
        prop_assert!(expected[skip..].starts_with(&seen));
        prop_assert!(used == places || seen.len() == expected.len() - skip);
    }
}

#[test]
fn long_data_is_shared_and_short_data_is_copied() {
    for (bytes, is_shared) in [(1023, false), (1024, true)] {
        let data = Bytes::from(vec![7; bytes]);
        let entry = Some(Entry { seqno: Seqno::ZERO, data: data.clone() });
        let reflects = Reflects { lsn: Lsn::ZERO, served: Served::Rw };
        let mut out = Outgoing::default();
        Response::Head { entry, reflects }.encode(1, &mut out);
        let mut slices = [IoSlice::new(&[]); 4];
        let used = out.chunks_vectored(&mut slices);
        let shared = slices[..used].iter().any(|slice| slice.as_ptr() == data.as_ptr());
        assert_eq!(shared, is_shared, "{bytes}");
    }
}
