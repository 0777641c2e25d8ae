//! Accounting of one connection: segments, bytes, and chunks acknowledged but not reported.

/// What is counted of one connection.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Accounting {
    acked_chunks: u32,
    segments_in: u32,
    segments_out: u32,
    bytes_in: ByteCount,
    bytes_out: ByteCount,
}

impl Accounting {
    /// The connection begins with the segment that ended its handshake, or with a SYN's data.
    pub(crate) const fn begin_with_segment(&mut self) {
        self.segments_in = 1;
    }

    #[inline(always)]
    pub(crate) const fn count_segment_in(&mut self) {
        self.segments_in = self.segments_in.wrapping_add(1);
    }

    #[inline(always)]
    pub(crate) const fn count_segment_out(&mut self) {
        self.segments_out = self.segments_out.wrapping_add(1);
    }

    #[inline(always)]
    pub(crate) const fn count_bytes_in(&mut self, bytes: u32) {
        self.bytes_in.add(bytes);
    }

    #[inline(always)]
    pub(crate) const fn count_bytes_out(&mut self, bytes: u32) {
        self.bytes_out.add(bytes);
    }

    /// Segments of the flow that arrived, acceptable or not; the number wraps.
    #[inline(always)]
    pub(crate) const fn segments_in(&self) -> u32 {
        self.segments_in
    }

    /// Segments that left; the number wraps.
    pub(crate) const fn segments_out(&self) -> u32 {
        self.segments_out
    }

    /// Bytes received in order.
    pub(crate) const fn bytes_in(&self) -> u64 {
        self.bytes_in.get()
    }

    /// Bytes sent, retransmissions included.
    pub(crate) const fn bytes_out(&self) -> u64 {
        self.bytes_out.get()
    }

    #[inline(always)]
    pub(crate) const fn has_received_bytes(&self) -> bool {
        self.bytes_in.get() > 0
    }

    /// Chunks were acknowledged whole.
    #[inline(always)]
    pub(crate) const fn count_acked(&mut self, chunks: u32) {
        self.acked_chunks = self.acked_chunks.saturating_add(chunks);
    }

    /// The same of one chunk.
    #[inline(always)]
    pub(crate) const fn count_acked_one(&mut self) {
        // The most that can be said stays.
        if let Some(count) = self.acked_chunks.checked_add(1) {
            self.acked_chunks = count;
        }
    }

    /// Chunks were acknowledged that are not reported yet.
    #[inline(always)]
    pub(crate) const fn has_acked(&self) -> bool {
        self.acked_chunks > 0
    }

    /// How many those are; they count as reported.
    pub(crate) const fn take_acked(&mut self) -> u32 {
        core::mem::replace(&mut self.acked_chunks, 0)
    }
}

/// A count in six bytes, which wraps after 256 TiB.
#[derive(Debug, Clone, Copy, Default)]
struct ByteCount {
    low: [u16; 2],
    high: u16,
}

impl ByteCount {
    const fn get(self) -> u64 {
        self.low() as u64 | (self.high as u64) << 32
    }

    const fn add(&mut self, bytes: u32) {
        let (low, carry) = self.low().overflowing_add(bytes);
        self.low = [low as u16, (low >> 16) as u16];
        self.high = self.high.wrapping_add(carry as u16);
    }

    const fn low(self) -> u32 {
        self.low[0] as u32 | (self.low[1] as u32) << 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_count_carries() {
        let mut count = ByteCount::default();
        count.add(7);
        count.add(u32::MAX);
        assert_eq!(count.get(), u64::from(u32::MAX) + 7);
        (0..5).for_each(|_| count.add(u32::MAX));
        assert_eq!(count.get(), 6 * u64::from(u32::MAX) + 7);
    }

    #[test]
    fn acknowledged_chunks_are_reported_once_and_saturate() {
        let mut accounting = Accounting::default();
        assert!(!accounting.has_acked());
        accounting.count_acked_one();
        accounting.count_acked(2);
        assert!(accounting.has_acked());
        assert_eq!((accounting.take_acked(), accounting.take_acked()), (3, 0));
        accounting.count_acked(u32::MAX);
        accounting.count_acked_one();
        accounting.count_acked(1);
        assert_eq!(accounting.take_acked(), u32::MAX);
    }
}
