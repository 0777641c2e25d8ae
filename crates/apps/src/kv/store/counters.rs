//! What a shard counts. Plain numbers, changed under the shard's lock, added up on request.

/// Declares the counters once: the struct, and how two of them are added.
macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counters of one shard, or of all.
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        pub struct StoreCounters {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl StoreCounters {
            /// Adds another shard's counters.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Items now.
    items,
    /// Bytes that these take in the logs.
    item_bytes,
    /// Bytes of logs that hold anything, dead records included.
    used_bytes,
    /// Bytes of dead records and fillers.
    dead_bytes,
    /// Bytes of values in arrival.
    reserved_bytes,
    /// Memory of the logs.
    log_bytes,
    /// Memory of the hash tables.
    table_bytes,
    /// Items ever stored.
    total_items,
    /// Fetches that found an item.
    get_hits,
    /// Fetches that did not.
    get_misses,
    /// Fetches that found an item after its time.
    get_expired,
    /// Fetches that found an item of before a flush.
    get_flushed,
    /// Storage commands.
    cmd_set,
    /// Touches.
    cmd_touch,
    /// Touches that found an item.
    touch_hits,
    /// Touches that did not.
    touch_misses,
    /// Deletions that found an item.
    delete_hits,
    /// Deletions that did not.
    delete_misses,
    /// Increments that found an item.
    incr_hits,
    /// Increments that did not.
    incr_misses,
    /// Decrements that found an item.
    decr_hits,
    /// Decrements that did not.
    decr_misses,
    /// Stores whose cas unique was right.
    cas_hits,
    /// Stores with a cas unique that found no item.
    cas_misses,
    /// Stores whose cas unique was wrong.
    cas_badval,
    /// Live items pushed out for others.
    evictions,
    /// Items after their time, or of before a flush, whose memory was taken back.
    reclaimed,
    /// Records carried from tail to head.
    carried,
    /// Values too large to be stored.
    too_large,
    /// Values for which there was no memory.
    out_of_memory,
}
