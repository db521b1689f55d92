//! What the types do not let through: one file for each mistake, in `compile_fail/`, named after it.

#[test]
fn memory_under_dma_cannot_be_touched() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
