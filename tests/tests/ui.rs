//! The macro's errors for mistakes: one file for each, in `ui/`, named after it.

#[test]
fn mistakes_are_named_where_they_are_made() {
    trybuild::TestCases::new().compile_fail("ui/*.rs");
}
