use clap::Args;
use headwater_client::ReadFrom;
use headwater_protocol::{Consistency, Seqno, ShardName};

use crate::cluster::{ClusterArgs, seqno, shard_name};
use crate::data::{EntryJson, preview};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::units;

/// What to watch.
#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    /// The shard
    #[arg(value_parser = shard_name)]
    shard: ShardName,
    /// The first entry wanted [default: the next one that is written]
    #[arg(long = "start", value_name = "SEQNO", value_parser = seqno)]
    start: Option<Seqno>,
}

/// Shows a shard's entries as each becomes visible, until it is interrupted.
pub(crate) async fn run(out: Output, cluster: &ClusterArgs, args: WatchArgs) -> Result<Exit, Failure> {
    let client = cluster.client(ReadFrom::Replicas).await?;
    let shard = &args.shard;
    let of = || Failure::of(format!("shard {shard}"));
    let start = match args.start {
        Some(start) => start,
        None => match client.head(shard, Consistency::Strong).await.map_err(of())?.entry {
            Some(head) => head.seqno.next().unwrap_or(Seqno::MAX),
            None => Seqno::ZERO,
        },
    };
    let mut watch = client.watch(shard, start).await.map_err(of())?;
    while let Some(entry) = watch.next().await {
        let entry = entry.map_err(of())?;
        out.emit(&EntryJson::from(&entry), || {
            let size = units::bytes(entry.data.len() as u64);
            format!("{:>8}  {size:>10}  {}", entry.seqno, preview(&entry.data, 100))
        })?;
    }
    Err(Failure::Failed(format!("shard {shard}: the watch ended; no node goes on with it")))
}
