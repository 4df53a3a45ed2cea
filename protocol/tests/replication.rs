//! The conversation of an attach.

use std::io::{self, Cursor};

use headwater_protocol::replication::{Applied, Attach, Refusal, ToRo, ToRw, Transport, receive, send};
use headwater_protocol::{Epoch, Lsn};

fn attach() -> ToRw {
    ToRw::Attach(Attach {
        applied: Applied {
            lsn: Lsn::new(u64::MAX),
            start: Lsn::new(8),
            chain: u64::MAX,
            epoch: Epoch::new(3),
        },
        transport: Transport::Tcp,
        why: "no shared memory".into(),
    })
}

#[test]
fn messages_come_as_they_went_one_after_the_other() {
    let refused = ToRo::Refused { refusal: Refusal::Diverged, message: "at LSN 8".into() };
    let mut wire = Vec::new();
    send(&mut wire, &attach()).unwrap();
    send(&mut wire, &refused).unwrap();
    let mut wire = Cursor::new(wire);
    assert_eq!(receive::<ToRw>(&mut wire).unwrap(), attach());
    assert_eq!(receive::<ToRo>(&mut wire).unwrap(), refused);
    assert_eq!(receive::<ToRo>(&mut wire).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_cut_message_is_an_error_wherever_it_is_cut() {
    let mut wire = Vec::new();
    send(&mut wire, &attach()).unwrap();
    for cut in 0..wire.len() {
        let error = receive::<ToRw>(&mut &wire[..cut]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{cut}");
    }
}

#[test]
fn what_is_no_message_is_an_error() {
    let framed = |json: &[u8]| [&u32::try_from(json.len()).unwrap().to_le_bytes(), json].concat();
    for json in [&b"not json"[..], b"{}", b"{\"say\":\"dance\"}", b"\xff\xfe", b""] {
        assert!(receive::<ToRw>(&mut &framed(json)[..]).is_err(), "{json:?}");
    }
    // Before any memory is taken for it.
    let error = receive::<ToRw>(&mut &[0xff; 16][..]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

#[test]
fn a_message_too_long_to_be_received_is_not_sent() {
    let message = ToRo::Refused { refusal: Refusal::Invalid, message: "x".repeat(5 << 20) };
    let mut wire = Vec::new();
    assert_eq!(send(&mut wire, &message).unwrap_err().kind(), io::ErrorKind::InvalidData);
    assert!(wire.is_empty());
}
