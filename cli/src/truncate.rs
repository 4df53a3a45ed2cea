use clap::Args;
use headwater_client::ReadFrom;
use headwater_protocol::{Seqno, ShardName};
use serde_json::json;

use crate::cluster::{ClusterArgs, seqno, shard_name};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::units;

/// What to remove where.
#[derive(Args, Debug)]
pub(crate) struct TruncateArgs {
    /// The shard
    #[arg(value_parser = shard_name)]
    shard: ShardName,
    /// The new lowest seqno: entries below it are removed, never the head
    #[arg(value_parser = seqno)]
    cut: Seqno,
}

/// Removes a shard's oldest entries.
pub(crate) async fn run(out: Output, cluster: &ClusterArgs, args: TruncateArgs) -> Result<Exit, Failure> {
    let client = cluster.client(ReadFrom::Replicas).await?;
    let (shard, cut) = (&args.shard, args.cut);
    let done = client.truncate(shard, cut).await.map_err(Failure::of(format!("shard {shard}")))?;
    let json = json!({ "shard": shard, "cut": cut, "removed": done.removed, "lsn": done.lsn });
    out.emit(&json, || {
        let removed = units::of(done.removed, "entry", "entries");
        format!("removed {removed} of {shard} below {cut}; LSN {}", done.lsn)
    })?;
    Ok(Exit::Done)
}
