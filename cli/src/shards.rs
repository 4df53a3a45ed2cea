use clap::Args;
use headwater_client::{Client, ClientError};
use headwater_protocol::limits::SHARDS_NAMES_MAX;
use headwater_protocol::{Consistency, ShardName};
use serde_json::json;

use crate::cluster::{ClusterArgs, ReadArgs};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// Which names to list.
#[derive(Args, Debug)]
pub(crate) struct ShardsArgs {
    /// What the names begin with
    #[arg(default_value = "")]
    prefix: String,
    /// Only names after this one
    #[arg(long, value_name = "NAME", default_value = "")]
    after: String,
    /// Names at most
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=i64::from(SHARDS_NAMES_MAX)))]
    limit: u32,
    #[command(flatten)]
    read: ReadArgs,
}

/// Lists shards.
pub(crate) async fn run(out: Output, cluster: &ClusterArgs, args: ShardsArgs) -> Result<Exit, Failure> {
    let (client, consistency) = cluster.connect(&args.read).await?;
    let page = client
        .shards(&args.prefix, &args.after, args.limit, consistency)
        .await
        .map_err(Failure::of(format!("shards beginning with {:?}", args.prefix)))?;
    let json = json!({
        "shards": page.names,
        "more": page.more,
        "lsn": page.reflects.lsn,
        "served": page.reflects.served.name(),
    });
    out.emit(&json, || {
        page.names.iter().map(|name| format!("{}\n", name.as_str().escape_debug())).collect()
    })?;
    if let (true, false, Some(last)) = (page.more, out.is_json(), page.names.last()) {
        eprintln!("headwater: there are more, after --after {:?}", last.as_str());
    }
    Ok(Exit::Done)
}

/// Every shard whose name begins with `prefix`.
pub(crate) async fn all(
    client: &Client,
    prefix: &str,
    consistency: Consistency,
) -> Result<Vec<ShardName>, ClientError> {
    let mut names: Vec<ShardName> = Vec::new();
    loop {
        let after = names.last().map_or("", ShardName::as_str).to_owned();
        let page = client.shards(prefix, &after, SHARDS_NAMES_MAX, consistency).await?;
        let more = page.more && !page.names.is_empty();
        names.extend(page.names);
        if !more {
            return Ok(names);
        }
    }
}
