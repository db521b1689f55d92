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
    bidirectional_calls "bidirectional-calls.md"
    testing "testing.md"
    channels "channels.md"
    discovery "discovery.md"
    interceptors "interceptors.md"
    operating "operating.md"
    security "security.md"
    observability "observability.md"
    tuning "tuning.md"
    rdma_hardware "rdma-hardware.md"
    migrating_from_tonic "migrating-from-tonic.md"
    migrating_from_tarpc "migrating-from-tarpc.md"
}
