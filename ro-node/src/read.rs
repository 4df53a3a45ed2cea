//! A strongly consistent read on a replica (R1–R6): how fresh must the state be, is it, and if not, what is the least to
//! wait for?

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::try_join_all;
use headwater_node::Query;
use headwater_protocol::response::Response;
use headwater_protocol::{Error, Lsn, Served, ShardName};
use headwater_shard_log::Bounds;
use headwater_timestamp::{Layout, Nanos};

use crate::state::State;
use crate::upstream::{NoTimestamp, Upstream};

/// A scan that can touch more pages than this is not tracked by page: to fetch so many timestamps costs more than a wait.
const PAGES_MAX: u64 = 16;

impl State {
    /// Answers `query` as of `arrival` or later if that takes no waiting: the first level suffices, by a timestamp that is here or
    /// comes at once.
    pub(crate) fn strong_at_once(&self, query: &Query, arrival: Nanos) -> Option<Response> {
        let upstream = self.upstream.borrow().clone()?;
        if !upstream.has_global_at_once(arrival) {
            return None;
        }
        let response = self.by_global(&upstream, query, arrival).now_or_never()?.ok()?.ok()?;
        self.counters.strong_reads.fetch_add(1, Ordering::Relaxed);
        Some(response)
    }

    /// Answers `query` as of `arrival` or later. Waits as long as it takes; the caller bounds it.
    pub(crate) async fn strong(&self, query: &Query, arrival: Nanos) -> Response {
        let mut upstreams = self.upstream.subscribe();
        loop {
            // It fails only without a sender, which is `self`.
            let upstream =
                upstreams.wait_for(Option::is_some).await.ok().and_then(|upstream| upstream.clone());
            let Some(upstream) = upstream else { continue };
            match self.strong_by(&upstream, query, arrival).await {
                Ok(response) => {
                    self.counters.strong_reads.fetch_add(1, Ordering::Relaxed);
                    return response;
                }
                Err(NoTimestamp::NoRight) => {
                    tokio::select! {
                        () = upstream.renewed() => {}
                        () = self.replaced(&upstream) => {}
                    }
                }
                Err(NoTimestamp::Busy) => {
                    return Response::Error(Error::Overloaded(
                        "too many timestamps are being fetched".into(),
                    ));
                }
                // The follower sees the same and takes the upstream away; then another comes, or the deadline.
                Err(NoTimestamp::LinkGone) => self.replaced(&upstream).await,
            }
        }
    }

    /// Returns when the RO is no longer attached by `upstream`.
    async fn replaced(&self, upstream: &Arc<Upstream>) {
        let other = |now: &Option<Arc<Upstream>>| now.as_ref().is_none_or(|now| !Arc::ptr_eq(now, upstream));
        // It fails only without a sender, which is `self`.
        let _ = self.upstream.subscribe().wait_for(other).await;
    }

    /// The levels in order, stopping at the first that suffices (R3).
    async fn strong_by(
        &self,
        upstream: &Upstream,
        query: &Query,
        arrival: Nanos,
    ) -> Result<Response, NoTimestamp> {
        let layout = &upstream.layout;
        let global = match self.by_global(upstream, query, arrival).await? {
            Ok(response) => return Ok(response),
            Err(global) => global,
        };
        let Some(shard) = query.shard() else {
            self.applied.reached(global).await;
            return Ok(self.answer(query, Served::Waited));
        };
        let (slot, _) = self.timestamp(upstream, layout.shard(shard.as_str()), arrival).await?;
        if self.applied.get() >= slot {
            return Ok(self.answer(query, Served::Shard));
        }
        // Either of them suffices, so the smaller one.
        let by_page = self.by_page(upstream, query, shard, arrival, global.min(slot));
        // On the heap, as few reads come here and all would carry its room.
        Box::pin(by_page).await
    }

    /// The first level: the answer, or the global timestamp that the state has not reached.
    async fn by_global(
        &self,
        upstream: &Upstream,
        query: &Query,
        arrival: Nanos,
    ) -> Result<Result<Response, Lsn>, NoTimestamp> {
        let (global, reused) = self.timestamp(upstream, upstream.layout.global(), arrival).await?;
        if self.applied.get() < global {
            // What is missing has often arrived already, and only waits for the follower to get its turn.
            upstream.intake.help(self);
        }
        if self.applied.get() < global {
            return Ok(Err(global));
        }
        let served = if reused { Served::ReusedGlobal } else { Served::FetchedGlobal };
        Ok(Ok(self.answer(query, served)))
    }

    /// The third level. `any` is an LSN that suffices whatever the read touches.
    ///
    /// What it touches follows from the shard's bounds, and these move while the read fetches or waits: so the answer
    /// counts only if, in the very state that it was read from, it can touch no page that was not checked.
    async fn by_page(
        &self,
        upstream: &Upstream,
        query: &Query,
        shard: &ShardName,
        arrival: Nanos,
        any: Lsn,
    ) -> Result<Response, NoTimestamp> {
        let layout = &upstream.layout;
        // Pages whose timestamps were fetched, and the newest of these.
        let mut checked: Option<(RangeInclusive<u64>, Lsn)> = None;
        let mut waited = false;
        loop {
            let applied = self.applied.get();
            if applied >= any {
                return Ok(self.answer(query, Served::Waited));
            }
            if let Some((pages, newest)) = &checked
                && applied >= *newest
            {
                let served = if waited { Served::Waited } else { Served::Page };
                let (response, bounds) = query.answer(&self.log, applied, served);
                let touched = bounds.and_then(|bounds| touched(layout, query, &bounds));
                if touched.is_some_and(|now| pages.contains(now.start()) && pages.contains(now.end())) {
                    self.counters.served(served);
                    return Ok(response);
                }
            }
            // None for a shard that was never written here, and for a scan of too many pages.
            let touched = self.log.bounds(shard.as_str()).and_then(|bounds| touched(layout, query, &bounds));
            checked = match (touched, checked.take()) {
                (None, _) => None,
                (Some(pages), Some((known, newest))) if known == pages => Some((known, newest)),
                (Some(pages), _) => {
                    let words = layout.page_words(shard.as_str(), pages.clone());
                    let fetches = words.map(|word| self.timestamp(upstream, word, arrival));
                    let newest = try_join_all(fetches).await?.into_iter().map(|(lsn, _)| lsn).max();
                    newest.map(|newest| (pages, newest))
                }
            };
            let least = checked.as_ref().map_or(any, |(_, newest)| any.min(*newest));
            if self.applied.get() < least {
                waited = true;
                self.applied.reached(least).await;
            }
        }
    }

    async fn timestamp(
        &self,
        upstream: &Upstream,
        word: usize,
        arrival: Nanos,
    ) -> Result<(Lsn, bool), NoTimestamp> {
        let now = || Nanos(self.timer.nanos(Instant::now()));
        let fetches = &self.counters.fetches;
        let (stamp, reused) = upstream.timestamp(word, arrival, now, fetches).await?;
        Ok((stamp.lsn, reused))
    }

    /// Answers from the state as it is now.
    pub(crate) fn answer(&self, query: &Query, served: Served) -> Response {
        self.counters.served(served);
        let applied = self.applied.get();
        query.answer(&self.log, applied, served).0
    }
}

/// The pages that the read can touch in a state with those bounds; none if they are too many.
fn touched(layout: &Layout, query: &Query, bounds: &Bounds) -> Option<RangeInclusive<u64>> {
    let pages = match query {
        Query::Head(_) => layout.head_pages(bounds.head),
        Query::Scan(_, from, limit, _) => layout.scan_pages((bounds.lo, bounds.head), *from, *limit),
        Query::Shards(..) => return None,
    };
    (pages.end() - pages.start() < PAGES_MAX).then_some(pages)
}

#[cfg(test)]
mod tests;
