//! After its first use, computing a gradient allocates nothing of its own, and neither does the loader.
//!
//! The kernels that multiply matrices do allocate room for packing, on every call. So the bare products of a
//! gradient are counted first; the gradient may allocate exactly as often as they do, and must leave nothing
//! behind.

#![allow(clippy::unwrap_used, missing_docs)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use slackline_core::ids::BatchIndex;
use slackline_core::model::{DatasetSpec, ModelSpec};
use slackline_core::schedule::DataOrder;
use slackline_worker::dataset::{DataSettings, load};
use slackline_worker::loader::Loader;
use slackline_worker::model::pieces::PairwiseGradient;
use slackline_worker::model::{Examples, build};

static CALLS: AtomicI64 = AtomicI64::new(0);
static HELD: AtomicI64 = AtomicI64::new(0);

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; the counters do not touch memory it hands out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        HELD.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Calls to the allocator while `run` runs, and the bytes that it leaves allocated: the least of five runs,
/// since the test harness has a thread that is counted too.
fn counted(mut run: impl FnMut()) -> (i64, i64) {
    let once = |_| {
        let (calls, held) = (CALLS.load(Ordering::Relaxed), HELD.load(Ordering::Relaxed));
        run();
        (CALLS.load(Ordering::Relaxed) - calls, HELD.load(Ordering::Relaxed) - held)
    };
    (0..5).map(once).min().unwrap()
}

/// Multiplies zeros: (rows, inner) by (inner, columns), each input stored row-major or, if so marked,
/// transposed.
fn bare_product(
    rows: usize,
    inner: usize,
    columns: usize,
    left_transposed: bool,
    right_transposed: bool,
    memory: &mut [f32],
) {
    let strides = |rows: usize, columns: usize, transposed| {
        if transposed { (1, rows as isize) } else { (columns as isize, 1) }
    };
    let (left, right) = (strides(rows, inner, left_transposed), strides(inner, columns, right_transposed));
    let inputs = rows * inner + inner * columns;
    assert!(inputs + rows * columns <= memory.len());
    let (left_start, right_start, out) =
        (memory.as_ptr(), memory[rows * inner..].as_ptr(), memory[inputs..].as_ptr().cast_mut());
    // SAFETY: three disjoint, large enough parts of `memory`, which is borrowed mutably.
    unsafe {
        gemm_f32::gemm::f32::get_gemm_fn()(
            columns,
            rows,
            inner,
            out,
            columns as isize,
            1,
            false,
            right_start,
            right.0,
            right.1,
            left_start,
            left.0,
            left.1,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm_common::Parallelism::None,
        );
    }
}

/// One test, since the counters see every thread of the process.
#[test]
fn gradients_and_batches_allocate_nothing_in_the_steady_state() {
    const WIDTHS: [usize; 4] = [64, 96, 80, 10];
    const SAMPLES: usize = 32;
    let spec = ModelSpec::Mlp { widths: vec![96, 80] };
    let mut model = build(&spec, 64, 10, SAMPLES);
    let size = model.layout().len() as usize;
    let (mut values, mut gradient) = (vec![0.0; size], vec![0.0; size]);
    model.initialize(1, &mut values);
    let inputs = vec![0.5; SAMPLES * 64];
    let labels = vec![3; SAMPLES];
    let examples = Examples::new(&inputs, &labels, 64);

    let mut memory = vec![0.0; 3 * 96 * 96];
    let mut products = || {
        for pair in WIDTHS.windows(2) {
            bare_product(SAMPLES, pair[0], pair[1], false, false, &mut memory);
            bare_product(pair[0], SAMPLES, pair[1], true, false, &mut memory);
            if pair[0] != WIDTHS[0] {
                bare_product(SAMPLES, pair[1], pair[0], false, true, &mut memory);
            }
        }
    };
    let (of_products, _) = counted(&mut products);
    let of_gradient = counted(|| {
        model.gradient(&values, examples, &mut gradient);
    });
    assert_eq!(
        of_gradient,
        (of_products, 0),
        "(calls, bytes left) of a gradient, whose products make {of_products} calls"
    );

    let mut keys_ready = 0;
    let told_of = counted(|| {
        model.gradient_with(&values, examples, &mut gradient, &mut |_, keys| keys_ready += keys.len());
    });
    assert_eq!((told_of, keys_ready % size), (of_gradient, 0), "a gradient whose parts are told of");

    let mut pieces = PairwiseGradient::new(SAMPLES / 4, size, SAMPLES);
    let (of_pieces, left) = counted(|| {
        pieces.gradient(model.as_mut(), &values, examples, &mut gradient);
    });
    assert_eq!(left, 0, "bytes left by a gradient in pieces");
    let told_of = counted(|| {
        pieces.gradient_of(
            model.as_mut(),
            &mut values.as_slice(),
            examples,
            &mut gradient,
            &mut |_, keys| {
                keys_ready += keys.len();
            },
        );
    });
    assert_eq!(told_of, (of_pieces, 0), "a gradient in pieces whose parts are told of");

    let dataset = load(&DataSettings { spec: DatasetSpec::Digits, dir: None, limit: None }).unwrap();
    let order = DataOrder::new(1, dataset.train.len() as u64, SAMPLES as u64, 4);
    let mut loader = Loader::start(Arc::new(dataset), order, |_, _| ()).unwrap();
    let mut indices = 0..;
    let twenty = counted(|| {
        for index in indices.by_ref().take(20) {
            loader.request(BatchIndex(index + 1), 1).unwrap();
            let batch = loader.take(BatchIndex(index), 1).unwrap();
            loader.give_back(batch);
        }
    });
    assert_eq!(twenty, (0, 0), "(calls, bytes left) of twenty batches");
}
