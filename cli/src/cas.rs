use clap::Args;
use headwater_client::{Cas, ReadFrom};
use headwater_protocol::{Lsn, Seqno, ShardName};
use serde_json::json;

use crate::cluster::{self, ClusterArgs, shard_name};
use crate::data::DataArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// What to write where.
#[derive(Args, Debug)]
pub(crate) struct CasArgs {
    /// The shard
    #[arg(value_parser = shard_name)]
    shard: ShardName,
    /// The head that the write builds on; none if the shard was never written
    #[arg(long, value_name = "SEQNO|none", value_parser = expected)]
    expected: Expected,
    #[command(flatten)]
    data: DataArgs,
}

/// A head, or none. A type of its own because clap takes an `Option` for a flag that may be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Expected(Option<Seqno>);

fn expected(text: &str) -> Result<Expected, String> {
    match text {
        "none" => Ok(Expected(None)),
        number => cluster::seqno(number)
            .map(|seqno| Expected(Some(seqno)))
            .map_err(|e| format!("{e}, or none for a shard that was never written")),
    }
}

/// Writes an entry if the shard's head is the expected one.
pub(crate) async fn run(out: Output, cluster: &ClusterArgs, args: CasArgs) -> Result<Exit, Failure> {
    let data = args.data.read()?;
    let client = cluster.client(ReadFrom::Replicas).await?;
    let shard = &args.shard;
    let cas = client
        .compare_and_set(shard, args.expected.0, data)
        .await
        .map_err(Failure::of(format!("shard {shard}")))?;
    match cas {
        Cas::Committed(seqno, lsn) => committed(out, shard, seqno, lsn),
        Cas::Mismatch { head, lsn } => {
            let json = json!({ "shard": shard, "committed": false, "head": head, "lsn": lsn });
            out.emit(&json, || match head {
                Some(head) => format!("not written: the head of {shard} is {head}"),
                None => format!("not written: {shard} was never written; its first write expects none"),
            })?;
            Ok(Exit::Mismatch)
        }
    }
}

/// Says that an entry was written.
pub(crate) fn committed(out: Output, shard: &ShardName, seqno: Seqno, lsn: Lsn) -> Result<Exit, Failure> {
    let json = json!({ "shard": shard, "committed": true, "seqno": seqno, "lsn": lsn });
    out.emit(&json, || format!("written: {shard} is at {seqno}; LSN {lsn}"))?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_head_is_a_number_or_none() {
        assert_eq!(expected("none").unwrap(), Expected(None));
        assert_eq!(expected("7").unwrap(), Expected(Some(Seqno::new(7).unwrap())));
        for wrong in ["None", "", "-1", "1.5", "9223372036854775808"] {
            assert!(expected(wrong).unwrap_err().contains("none"), "{wrong}");
        }
    }
}
