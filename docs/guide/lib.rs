//! The chapters of the guide: their examples are compiled and run as doc tests.

macro_rules! chapters {
    ($($name:ident $file:literal)*) => {$(
        #[cfg(doctest)]
        #[doc = include_str!(concat!("src/", $file))]
        mod $name {}
    )*};
}

chapters! {
    introduction "introduction.md"
    first_service "first-service.md"
    errors "errors.md"
    deadlines "deadlines.md"
    streams "streams.md"
    payloads "payloads.md"
    both_ways "both-ways.md"
    testing "testing.md"
    channels "channels.md"
    around_calls "around-calls.md"
    operating "operating.md"
    observability "observability.md"
    tuning "tuning.md"
    nics "nics.md"
    from_tonic "from-tonic.md"
    from_tarpc "from-tarpc.md"
}
