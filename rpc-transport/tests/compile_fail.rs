//! Mistakes that the types reject: one file for each, in `compile_fail/`, named after it.

#[test]
fn memory_under_dma_cannot_be_touched() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
