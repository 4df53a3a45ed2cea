use clap::Args;
use headwater_protocol::ShardName;
use serde_json::json;

use crate::cluster::{ClusterArgs, ReadArgs, shard_name};
use crate::data::{EntryJson, preview};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::units;

/// What to show of which shard.
#[derive(Args, Debug)]
pub(crate) struct HeadArgs {
    /// The shard
    #[arg(value_parser = shard_name)]
    shard: ShardName,
    /// Write the entry's bytes and nothing else
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    #[command(flatten)]
    read: ReadArgs,
}

/// Shows a shard's newest entry.
pub(crate) async fn run(out: Output, cluster: &ClusterArgs, args: HeadArgs) -> Result<Exit, Failure> {
    let (client, consistency) = cluster.connect(&args.read).await?;
    let shard = &args.shard;
    let head = client.head(shard, consistency).await.map_err(Failure::of(format!("shard {shard}")))?;
    let exit = if head.entry.is_some() { Exit::Done } else { Exit::Nothing };
    if args.raw {
        match &head.entry {
            Some(entry) => out.raw(&entry.data)?,
            None => eprintln!("headwater: shard {shard} was never written"),
        }
        return Ok(exit);
    }
    let (lsn, served) = (head.reflects.lsn, head.reflects.served.name());
    let entry = head.entry.as_ref().map(EntryJson::from);
    let json = json!({ "shard": shard, "entry": entry, "lsn": lsn, "served": served });
    out.emit(&json, || match &head.entry {
        Some(entry) => format!(
            "{shard} is at {} ({}); as of LSN {lsn}, served: {served}\n{}",
            entry.seqno,
            units::bytes(entry.data.len() as u64),
            std::str::from_utf8(&entry.data).map_or_else(|_| preview(&entry.data, 80), visible_text),
        ),
        None => format!("{shard} was never written; as of LSN {lsn}, served: {served}"),
    })?;
    Ok(exit)
}

/// The text without what could move a terminal's cursor.
fn visible_text(text: &str) -> String {
    text.lines().map(|line| preview(line.as_bytes(), usize::MAX)).collect::<Vec<_>>().join("\n")
}
