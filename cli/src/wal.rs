use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use headwater_protocol::Lsn;
use headwater_shard_log::Change;
use headwater_wal::{OpenError, Record, RecordInfo, Report, check};
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::units;

/// What to do with a log on disk.
#[derive(Subcommand, Debug)]
pub(crate) enum WalCommand {
    /// Verify every record of a log, and say what is wrong where
    Check(CheckArgs),
    /// Show a log's records
    Dump(DumpArgs),
}

/// Which log to verify.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The folder of an RW's --data-dir
    dir: PathBuf,
}

/// Which records to show.
#[derive(Args, Debug)]
pub(crate) struct DumpArgs {
    /// The folder of an RW's --data-dir
    dir: PathBuf,
    /// Only records that end after this LSN
    #[arg(long, value_name = "LSN", default_value_t = 0)]
    from: u64,
    /// Records at most
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

/// Reads a log without changing anything; the RW may be running.
pub(crate) fn run(out: Output, command: WalCommand) -> Result<Exit, Failure> {
    match command {
        WalCommand::Check(args) => check_log(out, &args.dir),
        WalCommand::Dump(args) => dump(out, &args),
    }
}

fn check_log(out: Output, dir: &Path) -> Result<Exit, Failure> {
    match check(dir, &mut |_, _, _, _| {}) {
        Ok(report) => {
            out.emit(&report_json(&report), || report_people(out, &report))?;
            Ok(Exit::Done)
        }
        Err(OpenError::Damaged(damage)) => {
            let (file, offset, lsn) = (damage.file.display().to_string(), damage.offset, damage.lsn);
            let what = damage.what.to_string();
            let json = json!({ "ok": false, "damage": { "file": file, "offset": offset, "lsn": lsn, "what": what } });
            out.emit(&json, || {
                format!(
                    "damaged: byte {offset} of {file} (LSN {lsn}): {what}\n\
                     These bytes had been durable: what follows them may hold acknowledged writes, and an RW refuses to start \
                     from them.\nRestore the file, or rebuild this node from another one."
                )
            })?;
            Ok(Exit::Damaged)
        }
        Err(error) => Err(error.into()),
    }
}

fn report_json(report: &Report) -> Value {
    let torn = report.torn.as_ref().map(|torn| {
        json!({
            "file": torn.file.display().to_string(),
            "offset": torn.offset,
            "lsn": torn.lsn,
            "bytes": torn.bytes,
            "what": torn.what.to_string(),
        })
    });
    json!({
        "ok": true,
        "cluster": report.cluster,
        "cluster_id": report.cluster_id.to_string(),
        "epochs": report.history,
        "records": report.records,
        "bytes": report.bytes,
        "end": report.end,
        "closed": report.closed,
        "torn": torn,
    })
}

fn report_people(out: Output, report: &Report) -> String {
    let mut table =
        out.table(["epoch", "begins at LSN", "continues LSN"], &["epoch", "begins at LSN", "continues LSN"]);
    for epoch in &report.history.0 {
        table.add_row([epoch.epoch.to_string(), epoch.start.to_string(), epoch.previous_end.to_string()]);
    }
    let end = match (&report.torn, report.closed) {
        (Some(torn), _) => format!(
            "torn tail: byte {} of {} (LSN {}): {}; {} there were never known to be durable, and a start cuts them",
            torn.offset,
            torn.file.display(),
            torn.lsn,
            torn.what,
            units::bytes(torn.bytes),
        ),
        (None, true) => "closed in order".into(),
        (None, false) => "not closed: the RW runs, or was killed".into(),
    };
    format!(
        "cluster {} ({})\n{table}\nwhole: {}, {}, up to LSN {}\n{end}",
        report.cluster,
        report.cluster_id,
        units::of(report.records, "record", "records"),
        units::bytes(report.bytes),
        report.end,
    )
}

fn dump(out: Output, args: &DumpArgs) -> Result<Exit, Failure> {
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut written = Ok(());
    let checked = check(&args.dir, &mut |file, offset, info, record| {
        if info.end > Lsn::new(args.from) && left > 0 && written.is_ok() {
            left -= 1;
            written = dump_record(out, file, offset, info, record);
        }
    });
    written?;
    checked?;
    Ok(Exit::Done)
}

fn dump_record(
    out: Output,
    file: &Path,
    offset: u64,
    info: &RecordInfo,
    record: &Record,
) -> Result<(), Failure> {
    let what = match record {
        Record::Change(Change::Append { shard, seqno, data }) => {
            json!({ "kind": "append", "shard": shard, "seqno": seqno, "bytes": data.len() })
        }
        Record::Change(Change::Truncate { shard, cut }) => {
            json!({ "kind": "truncate", "shard": shard, "cut": cut })
        }
        Record::EpochStart(start, ..) => json!({ "kind": "epoch-start", "previous_end": start.previous_end }),
        Record::Close => json!({ "kind": "close" }),
    };
    let people = || {
        let file = file.file_name().unwrap_or_default().to_string_lossy();
        let place = format!("{:>12} {:>12}  {file}+{offset:<9}", info.start, info.end);
        match record {
            Record::Change(Change::Append { shard, seqno, data }) => {
                format!("{place} append      {shard:?} {seqno}  {}", units::bytes(data.len() as u64))
            }
            Record::Change(Change::Truncate { shard, cut }) => {
                format!("{place} truncate    {shard:?} below {cut}")
            }
            Record::EpochStart(start, ..) => {
                format!("{place} epoch-start {} after LSN {}", info.epoch, start.previous_end)
            }
            Record::Close => format!("{place} close"),
        }
    };
    let mut line = json!({
        "start": info.start,
        "lsn": info.end,
        "epoch": info.epoch,
        "file": file.display().to_string(),
        "offset": offset,
    });
    if let (Value::Object(line), Value::Object(what)) = (&mut line, what) {
        line.extend(what);
    }
    out.emit(&line, people)
}
