use clap::Args;
use headwater_client::ReadFrom;
use headwater_protocol::ShardName;

use crate::cas::committed;
use crate::cluster::{ClusterArgs, shard_name};
use crate::data::DataArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// What to write where.
#[derive(Args, Debug)]
pub(crate) struct AppendArgs {
    /// The shard
    #[arg(value_parser = shard_name)]
    shard: ShardName,
    #[command(flatten)]
    data: DataArgs,
}

/// Writes an entry after whatever the head is: reads it, then compare-and-set, again where another writer was first.
pub(crate) async fn run(out: Output, cluster: &ClusterArgs, args: AppendArgs) -> Result<Exit, Failure> {
    let data = args.data.read()?;
    let client = cluster.client(ReadFrom::Replicas).await?;
    let shard = &args.shard;
    let (seqno, lsn) = client.append(shard, data).await.map_err(Failure::of(format!("shard {shard}")))?;
    committed(out, shard, seqno, lsn)
}
