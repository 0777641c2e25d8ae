//! Pools: owners of buffers, refusals, and a model of the whole.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const PAGE: usize = limits::PAGE_BYTES;

fn layout(count: u32) -> PoolLayout {
    PoolLayout { buf_bytes: 256, count, tag: 5 }
}

fn pool(count: u32) -> Pool {
    let layout = layout(count);
    Pool::owning(Region::heap(layout.bytes()).expect("memory"), layout).expect("it fits")
}

#[test]
fn the_last_freed_is_the_next_given_out() {
    let pool = pool(3);
    let ids: Vec<BufId> = std::iter::from_fn(|| pool.alloc()).collect();
    assert_eq!(
        ids.iter().map(|id| (id.tag(), id.index())).collect::<Vec<_>>(),
        [(5, 0), (5, 1), (5, 2)]
    );
    pool.free(ids[0]).expect("in use");
    pool.free(ids[2]).expect("in use");
    assert_eq!(pool.alloc(), Some(ids[2]));
    assert_eq!(pool.free_count(), 1);
}

#[test]
fn a_buffer_freed_twice_or_of_another_pool_is_an_error() {
    let pool = pool(2);
    let buf = pool.alloc().expect("free");
    pool.free(buf).expect("in use");
    assert_eq!(pool.free(buf), Err(BufError::NotInUse(buf)));
    assert_eq!(pool.copy_in(buf, 0, b"x"), Err(BufError::NotInUse(buf)));
    let buf = pool.alloc().expect("free");
    for foreign in [BufId::new(4, buf.index()), BufId::new(5, 2), BufId::from_bits(u32::MAX)] {
        assert_eq!(pool.free(foreign), Err(BufError::Foreign(foreign)));
        assert_eq!(pool.copy_out(foreign, 0, &mut [0]), Err(BufError::Foreign(foreign)));
    }
    assert_eq!(pool.free_count(), 1);
}

#[test]
fn ranges_outside_a_buffer_are_refused() {
    let pool = pool(2);
    let buf = pool.alloc().expect("free");
    let outside = |offset, len| Err(BufError::OutOfBuf { offset, len });
    assert_eq!(pool.copy_in(buf, 255, b"ab"), outside(255, 2));
    assert_eq!(pool.copy_in(buf, u32::MAX, b""), outside(u32::MAX, 0));
    assert_eq!(pool.copy_in(buf, 256, b""), Ok(()));
    assert_eq!(pool.copy_out(buf, 0, &mut [0; 257]), outside(0, 257));
}

#[test]
fn pool_buffers_do_not_overlap() {
    let pool = pool(3);
    let ids: Vec<BufId> = std::iter::from_fn(|| pool.alloc()).collect();
    for (fill, id) in (1..).zip(&ids) {
        let bytes = [fill; 256];
        assert_eq!(pool.copy_in(*id, 0, &bytes), Ok(()));
    }
    for (fill, id) in (1..).zip(&ids) {
        let mut bytes = [0; 256];
        assert_eq!(pool.copy_out(*id, 0, &mut bytes), Ok(()));
        assert_eq!(bytes, [fill; 256]);
    }
    assert_eq!(pool.copy_in(ids[0], 3, &[0x12, 0x34, 0x56]), Ok(()));
    let mut part = [0; 4];
    assert_eq!(pool.copy_out(ids[0], 2, &mut part), Ok(()));
    assert_eq!(part, [1, 0x12, 0x34, 0x56]);
}

#[test]
fn pool_and_area_see_the_same_bytes() {
    let mut parts = Region::heap(PAGE).expect("a page").into_parts();
    let area = BufferArea::new(&mut parts, layout(2)).expect("it fits");
    let pool = Pool::new(area.clone());
    let buf = pool.alloc().expect("free");
    // Others see what is copied in, and what they write is copied out.
    pool.copy_in(buf, 8, b"seen").expect("in bounds");
    let mut bytes = [0; 4];
    area.read(buf.index(), 8, &mut bytes).expect("in bounds");
    assert_eq!(&bytes, b"seen");
}

#[test]
fn settings_out_of_range_are_named() {
    let refused = |change: fn(&mut PoolLayout)| {
        let mut layout = layout(2);
        change(&mut layout);
        Pool::owning(Region::heap(PAGE).expect("a page"), layout).map(|_| ())
    };
    let setting = |setting| Err(PoolError::Setting { setting });
    assert_eq!(refused(|layout| layout.buf_bytes = 63), setting("buf_bytes"));
    assert_eq!(refused(|layout| layout.buf_bytes = usize::MAX), setting("buf_bytes"));
    assert_eq!(refused(|layout| layout.count = 0), setting("count"));
    assert_eq!(refused(|layout| layout.count = u32::MAX), setting("count"));
    assert_eq!(refused(|layout| layout.tag = limits::POOL_TAGS_MAX), setting("tag"));
    assert!(matches!(refused(|layout| layout.count = 1000), Err(PoolError::Region(_))));
}

#[derive(Debug, Clone)]
enum Step {
    Alloc,
    Free(u32),
    Write(u32, u8),
}

const STEPS: usize = if cfg!(miri) { 20 } else { 80 };

fn step() -> impl Strategy<Value = Step> {
    // One index too many, so that foreign ids are tried.
    prop_oneof![
        Just(Step::Alloc),
        (0u32..5).prop_map(Step::Free),
        (0u32..5, any::<u8>()).prop_map(|(index, fill)| Step::Write(index, fill)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Against a map from index to fill.
    #[test]
    fn a_pool_does_what_its_model_does(steps in proptest::collection::vec(step(), 0..STEPS)) {
        let pool = pool(4);
        let mut model: BTreeMap<u32, u8> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Alloc => match pool.alloc() {
                    Some(buf) => {
                        let mut byte = [0];
                        pool.copy_out(buf, 3, &mut byte).expect("in use");
                        prop_assert!(model.insert(buf.index(), byte[0]).is_none());
                    }
                    None => prop_assert_eq!(model.len(), 4),
                },
                Step::Free(index) => {
                    let freed = pool.free(BufId::new(5, index)).is_ok();
                    prop_assert_eq!(freed, model.contains_key(&index));
                    model.remove(&index);
                }
                Step::Write(index, fill) => {
                    let wrote = pool.copy_in(BufId::new(5, index), 0, &[fill; 4]).is_ok();
                    prop_assert_eq!(wrote, model.contains_key(&index));
                    model.entry(index).and_modify(|old| *old = fill);
                }
            }
            prop_assert_eq!(pool.free_count() as usize, 4 - model.len());
            for (index, fill) in &model {
                let mut byte = [0];
                pool.copy_out(BufId::new(5, *index), 3, &mut byte).expect("in use");
                prop_assert_eq!(byte[0], *fill);
            }
        }
    }
}
