//! The texts of statuses, their encoding, and conversions of errors.

use proptest::prelude::*;
use rpc_transport::text::is_printable;

use super::*;

#[test]
fn codes_are_grpcs() {
    for (number, code) in (0_u8..).zip(Code::ALL) {
        assert_eq!(code.number(), number);
        assert_eq!(Code::from_number(number), Some(code));
    }
    for number in 17..=255 {
        assert_eq!(Code::from_number(number), None);
    }
    assert_eq!((Code::Unimplemented.number(), Code::Unauthenticated.number()), (12, 16));
}

#[test]
fn a_bare_status_is_small() {
    assert_eq!(size_of::<Status>(), 16);
    assert_eq!(size_of::<Result<u64, Status>>(), 16);
    assert!(Status::from(Code::Cancelled).rest.is_none());
    assert!(Status::cancelled("").rest.is_none());
}

#[test]
fn long_text_is_cut_long_details_are_dropped() {
    let long = "ä".repeat(MAX_MESSAGE_BYTES);
    let status = Status::internal(format!("x{long}"));
    let (text, _) = status.sent_within(usize::MAX);
    assert_eq!(text.len(), MAX_MESSAGE_BYTES - 1);
    assert!(status.message().starts_with(text));
    let status = Status::internal("m").with_details(vec![0; MAX_DETAILS_BYTES + 1]);
    assert_eq!(status.sent_within(usize::MAX), ("m", Cow::Borrowed(&[][..])));
    let status = Status::internal("m").with_details(vec![0; MAX_DETAILS_BYTES]);
    assert_eq!(status.sent_within(usize::MAX).1.len(), MAX_DETAILS_BYTES);
}

#[test]
fn details_are_dropped_first_to_fit_the_peer() {
    let status = Status::internal("größe").with_details(vec![7; 10]);
    assert_eq!(status.sent_within(17), ("größe", Cow::Borrowed(&[7; 10][..])));
    assert_eq!(status.sent_within(16), ("größe", Cow::Borrowed(&[][..])));
    assert_eq!(status.sent_within(3), ("gr", Cow::Borrowed(&[][..])));
    assert_eq!(status.sent_within(0), ("", Cow::Borrowed(&[][..])));
}

#[test]
fn pushback_precedes_the_details_and_survives_them() {
    let delay = Duration::from_millis(1500);
    let status = Status::unavailable("m").with_details(vec![7; 3]).with_retry_after(delay);
    let (text, details) = status.sent_within(usize::MAX);
    assert_eq!(Status::received(Code::Unavailable, text, &details, true), status);
    let (text, details) = status.sent_within(17);
    let alone = Status::received(Code::Unavailable, text, &details, true);
    assert_eq!((alone.retry_after(), alone.details()), (Some(delay), &[][..]));
    assert_eq!(status.sent_within(16).1.len(), 0);
    // Only for a retryable status, and not if it is cut off.
    assert_eq!(Status::received(Code::Internal, "", &details, false).details(), &*details);
    assert_eq!(Status::received(Code::Internal, "", &details[..15], true).retry_after(), None);
}

#[test]
fn a_forwarded_status_names_its_call() {
    static ONCE: MethodDescriptor = MethodDescriptor::new("Orders.place", "() -> ()", &[]);
    static AGAIN: MethodDescriptor =
        MethodDescriptor::new("Orders.look", "() -> ()", &[]).idempotent();
    static STOCK: MethodDescriptor = MethodDescriptor::new("Stock.reserve", "() -> ()", &[]);
    let full = Status::resource_exhausted("full").with_details(vec![9]).with_retryable(true);
    assert_eq!(*full.passed_on(Some(&ONCE)), full, "made here");
    let called = full.clone().of_call(&STOCK);
    assert_eq!(called, full, "who calls sees it as it is");
    assert!(format!("{called:?}").contains("call: \"Stock.reserve\""), "{called:?}");
    let told = Status::resource_exhausted("Stock.reserve: full").with_details(vec![9]);
    assert_eq!(*called.passed_on(Some(&ONCE)), told);
    assert_eq!(*called.passed_on(Some(&AGAIN)), told.clone().with_retryable(true));
    assert_eq!(
        *called.clone().with_retryable(true).passed_on(Some(&ONCE)),
        told.clone().with_retryable(true)
    );
    let bare = Status::from(Code::NotFound).of_call(&STOCK);
    assert_eq!(*bare.passed_on(None), Status::not_found("Stock.reserve"));
    let names_it = Status::deadline_exceeded("Stock.reserve: the deadline passed");
    assert_eq!(*names_it.clone().of_call(&STOCK).passed_on(None), names_it);
    let twice = told.of_call(&ONCE).passed_on(None).into_owned();
    assert_eq!(twice.message(), "Orders.place: Stock.reserve: full");
}

#[test]
fn errors_convert_along_a_chain() {
    #[derive(Debug, Clone, Copy, PartialEq)]
    struct Inner;
    #[derive(Debug, PartialEq)]
    struct Wide;
    impl From<Inner> for Wide {
        fn from(_: Inner) -> Self {
            Self
        }
    }
    impl From<Inner> for Status {
        fn from(_: Inner) -> Self {
            Self::aborted("inner")
        }
    }
    type Given = Result<u8, CallError<Inner>>;
    fn same(given: Given) -> Given {
        Ok(given? + 1)
    }
    fn wide(given: Given) -> Result<u8, CallError<Wide>> {
        Ok(given.map_err(CallError::user_into)? + 1)
    }
    fn plain(given: Given) -> Result<u8, Status> {
        Ok(given? + 1)
    }
    let (own, gone) = (CallError::User(Inner), Status::unavailable("gone"));
    assert_eq!(same(Ok(1)), Ok(2));
    assert_eq!(wide(Err(own.clone())), Err(CallError::User(Wide)));
    assert_eq!(wide(Err(gone.clone().into())), Err(CallError::Status(gone.clone())));
    assert_eq!(plain(Err(own)), Err(Status::aborted("inner")));
    assert_eq!(plain(Err(gone.clone().into())), Err(gone));
    assert_eq!(Status::from(CallError::User(Status::aborted(""))), Status::aborted(""));
}

#[derive(Debug, thiserror::Error)]
#[error("outer")]
struct Outer(#[source] std::fmt::Error);

#[test]
fn one_question_mark_is_enough() {
    fn call(fail: bool) -> Result<(), CallError<Outer>> {
        if fail {
            Err(Status::unavailable("down"))?;
        }
        Err(CallError::User(Outer(std::fmt::Error)))
    }
    fn caller(fail: bool) -> Result<(), Box<dyn Error>> {
        call(fail)?;
        Ok(())
    }
    assert_eq!(caller(true).unwrap_err().to_string(), "unavailable: down");
    let error = caller(false).unwrap_err();
    assert_eq!(error.to_string(), "Outer(Error)");
    let own = error.source().unwrap();
    assert_eq!(own.to_string(), "outer");
    assert!(own.source().unwrap().is::<std::fmt::Error>());
}

#[test]
fn an_error_without_a_text_can_be_shown() {
    #[derive(Debug)]
    struct OutOfStock {
        #[expect(dead_code, reason = "shown by `Debug`")]
        left: u32,
    }
    let shown = |error: CallError<OutOfStock>| error.to_string();
    assert_eq!(shown(CallError::User(OutOfStock { left: 3 })), "OutOfStock { left: 3 }");
    assert_eq!(shown(Status::unavailable("gone").into()), "unavailable: gone");
}

#[test]
fn a_code_is_a_status_of_a_call() {
    fn find(code: Code) -> Result<u8, CallError<u8>> {
        Err(code.into())
    }
    assert_eq!(find(Code::NotFound), Err(CallError::Status(Code::NotFound.into())));
}

#[test]
fn a_status_is_shown_as_one_printable_line() {
    let text = "no key \"a\"\n\u{1b}[2J\u{202e}";
    let status = Status::received(Code::NotFound, text, b"", false);
    assert_eq!(status.message(), text);
    assert_eq!(status.to_string(), "not found: no key \"a\"\\n\\u{1b}[2J\\u{202e}");
    assert_eq!(CallError::<Status>::from(status.clone()).to_string(), status.to_string());
}

proptest! {
    #[test]
    fn whatever_status_arrives_is_printable(text: String, details: Vec<u8>) {
        let status = Status::received(Code::Internal, &text, &details, true);
        prop_assert_eq!(status.message(), &text);
        for shown in [status.to_string(), format!("{status:?}")] {
            prop_assert!(is_printable(&shown), "{}", shown);
            prop_assert!(shown.len() < 7 * MAX_MESSAGE_BYTES);
        }
    }
}
