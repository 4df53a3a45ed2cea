use clap::Args;
use headwater_client::{Client, ClientError};
use headwater_protocol::limits::SCAN_ENTRIES_MAX;
use headwater_protocol::{Consistency, Entry, Lsn, Seqno, Served, ShardName};
use serde_json::json;

use crate::cluster::{ClusterArgs, ReadArgs, seqno, shard_name};
use crate::data::{EntryJson, preview};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::units;

/// What to show of which shard.
#[derive(Args, Debug)]
pub(crate) struct ScanArgs {
    /// The shard
    #[arg(value_parser = shard_name)]
    shard: ShardName,
    /// The lowest seqno wanted
    #[arg(long = "start", value_name = "SEQNO", default_value = "0", value_parser = seqno)]
    start: Seqno,
    /// Entries at most
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Write the entries' bytes, one after the other, and nothing else
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    #[command(flatten)]
    read: ReadArgs,
}

/// Shows entries of a shard.
pub(crate) async fn run(out: Output, cluster: &ClusterArgs, args: ScanArgs) -> Result<Exit, Failure> {
    let (client, consistency) = cluster.connect(&args.read).await?;
    let shard = &args.shard;
    let found = entries(&client, shard, args.start, args.limit, consistency)
        .await
        .map_err(Failure::of(format!("shard {shard}")))?;
    let next = found.entries.last().and_then(|entry| entry.seqno.next()).filter(|_| found.more);
    if args.raw {
        found.entries.iter().try_for_each(|entry| out.raw(&entry.data))?;
        if let Some(next) = next {
            eprintln!("headwater: there is more, from seqno {next} on");
        }
        return Ok(Exit::Done);
    }
    let json = json!({
        "shard": shard,
        "entries": found.entries.iter().map(EntryJson::from).collect::<Vec<_>>(),
        "more": found.more,
        "lsn": found.lsn,
        "served": found.served.name(),
    });
    out.emit(&json, || {
        let mut table = out.table(["seqno", "size", "data"], &["seqno", "size"]);
        for entry in &found.entries {
            let size = units::bytes(entry.data.len() as u64);
            table.add_row([entry.seqno.to_string(), size, preview(&entry.data, 80)]);
        }
        let count = units::of(found.entries.len() as u64, "entry", "entries");
        let more = next.map_or_else(String::new, |next| format!("; more from --start {next} on"));
        let (lsn, served) = (found.lsn, found.served.name());
        format!("{table}\n{count} of {shard}{more}; as of LSN {lsn}, served: {served}")
    })?;
    Ok(Exit::Done)
}

/// Entries of a shard out of as many pages as it takes.
pub(crate) struct Found {
    /// The entries, ascending.
    pub(crate) entries: Vec<Entry>,
    /// Whether the limit cut them.
    pub(crate) more: bool,
    /// What all pages reflect.
    pub(crate) lsn: Lsn,
    /// How the last page was served.
    pub(crate) served: Served,
}

/// Reads up to `limit` entries from `start` on, page by page.
pub(crate) async fn entries(
    client: &Client,
    shard: &ShardName,
    start: Seqno,
    limit: u64,
    consistency: Consistency,
) -> Result<Found, ClientError> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut lsn = Lsn::new(u64::MAX);
    let mut from = start;
    loop {
        let wanted = (limit - entries.len() as u64).min(SCAN_ENTRIES_MAX.into());
        let wanted = u32::try_from(wanted).expect("bounded by SCAN_ENTRIES_MAX");
        let page = client.scan(shard, from, wanted, consistency).await?;
        // Each page is a read of its own; the whole reflects no more than its oldest page does.
        lsn = lsn.min(page.reflects.lsn);
        entries.extend(page.entries);
        let next = entries.last().and_then(|entry| entry.seqno.next()).filter(|_| page.more);
        match next {
            Some(next) if (entries.len() as u64) < limit => from = next,
            _ => {
                return Ok(Found { entries, more: page.more, lsn, served: page.reflects.served });
            }
        }
    }
}
