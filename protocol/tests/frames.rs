//! What comes off a wire is what went onto it, or an error; never a panic, and never something else.

#![allow(clippy::unwrap_used)]

mod common;

use bytes::{Buf, Bytes, BytesMut};
use common::{request, request_bytes, response, response_bytes};
use headwater_protocol::frame::{
    CLIENT, Frame, OPENING_BYTES, REPLICATION, VERSION, opening, oversized, read_opening, split,
};
use headwater_protocol::limits::FRAME_BYTES_MAX;
use headwater_protocol::request::{Request, RequestFrame};
use headwater_protocol::response::Response;
use headwater_protocol::{Malformed, ShardName};
use proptest::prelude::*;
use proptest::sample::Index;

/// The one frame in `bytes`.
fn only(mut bytes: BytesMut) -> Frame {
    let frame = split(&mut bytes, FRAME_BYTES_MAX).unwrap().unwrap();
    assert!(bytes.is_empty());
    frame
}

fn decode_request(bytes: BytesMut) -> Result<RequestFrame, Malformed> {
    let frame = only(bytes);
    RequestFrame::decode(frame.kind, frame.id, frame.body)
}

/// The frame's bytes with its length word made to fit.
fn fit(mut bytes: BytesMut) -> BytesMut {
    let length = u32::try_from(bytes.len() - 4).unwrap();
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// Bytes of length word, kind and id.
const FIXED_BYTES: usize = 13;

proptest! {
    #[test]
    fn a_request_comes_as_it_went(request in request()) {
        prop_assert_eq!(decode_request(request_bytes(&request)).unwrap(), request);
    }

    #[test]
    fn a_response_comes_as_it_went(response in response(), id: u64) {
        let frame = only(response_bytes(&response, id));
        prop_assert_eq!(frame.id, id);
        prop_assert_eq!(Response::decode(frame.kind, frame.body).unwrap(), response);
    }

    /// However the bytes are cut on their way.
    #[test]
    fn frames_are_split_where_they_were_joined(
        requests in proptest::collection::vec(request(), 1..5),
        step in 1..200_usize,
    ) {
        let mut wire = BytesMut::new();
        requests.iter().for_each(|request| request.encode(&mut wire));
        let (mut got, mut decoded) = (BytesMut::new(), Vec::new());
        for piece in wire.chunks(step) {
            got.extend_from_slice(piece);
            while let Some(frame) = split(&mut got, FRAME_BYTES_MAX).unwrap() {
                decoded.push(RequestFrame::decode(frame.kind, frame.id, frame.body).unwrap());
            }
        }
        prop_assert_eq!(decoded, requests);
        prop_assert!(got.is_empty());
    }

    /// A frame that was cut, with borders that look sound, has fields missing: nothing shorter means the same.
    #[test]
    fn a_cut_frame_is_an_error(request in request(), response in response(), at: Index) {
        let bytes = request_bytes(&request);
        let cut = FIXED_BYTES + at.index(bytes.len() - FIXED_BYTES);
        let mut cut_bytes = bytes.clone();
        cut_bytes.truncate(cut);
        let error = decode_request(fit(cut_bytes)).unwrap_err();
        prop_assert!(matches!(error, Malformed::Short(_)), "{}", error);

        let mut bytes = response_bytes(&response, 1);
        if bytes.len() > FIXED_BYTES {
            bytes.truncate(FIXED_BYTES + at.index(bytes.len() - FIXED_BYTES));
            let frame = only(fit(bytes));
            let error = Response::decode(frame.kind, frame.body).unwrap_err();
            prop_assert!(matches!(error, Malformed::Short(_)), "{}", error);
        }
    }

    #[test]
    fn bytes_after_the_last_field_are_an_error(request in request(), response in response(), more in 1..9_usize) {
        for mut bytes in [request_bytes(&request), response_bytes(&response, 1)] {
            bytes.extend_from_slice(&vec![0; more]);
            let frame = only(fit(bytes));
            let error = match frame.kind {
                0..128 => RequestFrame::decode(frame.kind, frame.id, frame.body).unwrap_err(),
                _ => Response::decode(frame.kind, frame.body).unwrap_err(),
            };
            prop_assert_eq!(error, Malformed::Long(more));
        }
    }

    /// A changed byte gives an error or a value that is encoded as just these bytes: nothing is overlooked.
    #[test]
    fn a_changed_byte_is_never_overlooked(request in request(), response in response(), at: Index, change in 1..=255_u8) {
        let mut bytes = request_bytes(&request);
        let changed = 4 + at.index(bytes.len() - 4);
        bytes[changed] ^= change;
        let frame = only(bytes.clone());
        if let Ok(other) = RequestFrame::decode(frame.kind, frame.id, frame.body) {
            prop_assert_eq!(request_bytes(&other), bytes);
        }

        let mut bytes = response_bytes(&response, 1);
        let changed = 4 + at.index(bytes.len() - 4);
        bytes[changed] ^= change;
        let frame = only(bytes.clone());
        match Response::decode(frame.kind, frame.body) {
            // What belongs to no field of that error is not looked at.
            Ok(Response::Error(_)) | Err(_) => {}
            Ok(other) => prop_assert_eq!(response_bytes(&other, frame.id), bytes),
        }
    }

    #[test]
    fn any_bytes_are_decoded_without_a_panic(kind: u8, body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let body = Bytes::from(body);
        let _ = RequestFrame::decode(kind % 12, 1, body.clone());
        let _ = Response::decode(128 + kind % 12, body.clone());
        let _ = Response::decode(255, body);
    }

    #[test]
    fn any_bytes_are_split_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), max in 0..300_usize) {
        let mut rest = BytesMut::from(&bytes[..]);
        while let Ok(Some(frame)) = split(&mut rest, max) {
            prop_assert!(frame.body.len() + 9 <= max);
        }
    }
}

#[test]
fn a_frame_is_waited_for_only_within_its_bounds() {
    let split = |length: u32, max| split(&mut BytesMut::from(&length.to_le_bytes()[..]), max);
    for length in [0, 8, 101, u32::MAX] {
        assert_eq!(split(length, 100), Err(Malformed::FrameBytes(length.into())));
    }
    for length in [9, 100] {
        assert_eq!(split(length, 100), Ok(None));
    }
    // No caller's bound goes beyond the protocol's.
    let beyond = u32::try_from(FRAME_BYTES_MAX + 1).unwrap();
    assert_eq!(split(beyond, usize::MAX), Err(Malformed::FrameBytes(beyond.into())));
}

#[test]
fn a_length_that_is_only_claimed_takes_no_memory() {
    let mut bytes = BytesMut::from(&u32::try_from(FRAME_BYTES_MAX).unwrap().to_le_bytes()[..]);
    assert_eq!(split(&mut bytes, FRAME_BYTES_MAX), Ok(None));
    assert!(bytes.capacity() <= 2 << 20, "{}", bytes.capacity());

    // Two words and a count of four thousand million entries, or names.
    for kind in [129, 130, 131, 135] {
        let mut body = vec![0; 8];
        body.extend_from_slice(&[0; 2][..usize::from(kind != 135) + usize::from(kind == 130 || kind == 131)]);
        body.extend_from_slice(&u32::MAX.to_le_bytes());
        let error = Response::decode(kind, body.into()).unwrap_err();
        assert!(matches!(error, Malformed::Short(_)), "{kind}: {error}");
    }
}

#[test]
fn a_head_is_one_entry_at_most() {
    let entry = headwater_protocol::Entry { seqno: headwater_protocol::Seqno::ZERO, data: Bytes::new() };
    let watched = Response::Watched { entries: vec![entry.clone(), entry], lsn: Default::default() };
    // A watch's answer is a head's, but for the byte that says how it was served.
    let frame = only(response_bytes(&watched, 1));
    let body = [&frame.body[..8], &[0], &frame.body[8..]].concat();
    let error = Response::decode(129, body.into()).unwrap_err();
    assert_eq!(error.to_string(), "unknown number of heads 2");
}

#[test]
fn unknown_codes_are_named() {
    let error = RequestFrame::decode(77, 1, Bytes::from_static(&[0; 4])).unwrap_err();
    assert_eq!(error.to_string(), "unknown request 77");
    let error = Response::decode(77, Bytes::new()).unwrap_err();
    assert_eq!(error.to_string(), "unknown response 77");
    assert!(!error.is_argument());
}

#[test]
fn a_name_or_seqno_out_of_bounds_refuses_the_request_alone() {
    // A truncate: deadline, name, cut.
    let body = |name: &[u8], cut: u64| {
        let mut body = vec![0; 4];
        body.extend_from_slice(&u16::try_from(name.len()).unwrap().to_le_bytes());
        body.extend_from_slice(name);
        body.extend_from_slice(&cut.to_le_bytes());
        Bytes::from(body)
    };
    for body in [body(b"", 0), body(&[b'n'; 1025], 0), body(b"\xff", 0), body(b"n", 1 << 63)] {
        let error = RequestFrame::decode(6, 1, body).unwrap_err();
        assert!(error.is_argument(), "{error}");
    }
    assert!(RequestFrame::decode(6, 1, body(b"n", (1 << 63) - 1)).is_ok());
}

#[test]
fn an_opening_says_protocol_and_version() {
    for protocol in [CLIENT, REPLICATION] {
        assert_eq!(read_opening(&opening(protocol)), (protocol, VERSION));
    }
    let mut newer = opening(CLIENT);
    newer[9] = 1;
    assert_eq!(read_opening(&newer), (CLIENT, 256 + VERSION));
}

/// The bytes themselves: a change of them is a change of the protocol's version.
#[test]
fn the_bytes_on_the_wire_stay_what_they_are() {
    assert_eq!(opening(CLIENT), *b"HDWTRCLI\x01\0\0\0\0\0\0\0");
    assert_eq!(OPENING_BYTES, 16);
    let request = RequestFrame {
        id: 0x0102,
        deadline_ms: 5000,
        request: headwater_protocol::request::Request::CompareAndSet {
            shard: headwater_protocol::ShardName::new("ab").unwrap(),
            expected: None,
            data: Bytes::from_static(b"xyz"),
        },
    };
    let mut expected = Vec::new();
    expected.extend_from_slice(&[32, 0, 0, 0, 4, 2, 1, 0, 0, 0, 0, 0, 0, 0x88, 0x13, 0, 0, 2, 0]);
    expected.extend_from_slice(b"ab\xff\xff\xff\xff\xff\xff\xff\xff\x03\0\0\0xyz");
    assert_eq!(request_bytes(&request), expected[..]);

    let response = Response::Committed {
        seqno: headwater_protocol::Seqno::new(7).unwrap(),
        lsn: headwater_protocol::Lsn::new(64),
    };
    let mut bytes = response_bytes(&response, 1);
    assert_eq!(bytes.split_to(FIXED_BYTES), [25, 0, 0, 0, 132, 1, 0, 0, 0, 0, 0, 0, 0][..]);
    assert_eq!((bytes.get_u64_le(), bytes.get_u64_le(), bytes.remaining()), (7, 64, 0));
}

#[test]
fn a_frame_that_is_too_long_for_its_taker_has_an_id_to_refuse_it_on() {
    let mut bytes = BytesMut::new();
    let shard = ShardName::new("a").unwrap();
    let request = Request::CompareAndSet { shard, expected: None, data: Bytes::from(vec![0; 100]) };
    RequestFrame { id: 7, deadline_ms: 0, request }.encode(&mut bytes);
    let length = bytes.len() - 4;
    assert_eq!(oversized(&bytes, length), None);
    assert_eq!(oversized(&bytes, length - 1), Some((7, length + 4)));
    assert_eq!(oversized(&bytes[..12], 1), None, "its id is not there yet");
    let beyond = (FRAME_BYTES_MAX as u32 + 1).to_le_bytes();
    assert_eq!(oversized(&[&beyond[..], &[0; 16]].concat(), 1), None, "no frame is that long");
}
