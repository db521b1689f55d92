//! Types that share a name and differ in content: the first call detects this, and reports where
//! they differ.

use rpc_core::{Bulk, CallError, Code, Codec, Status};
use tests::changed::new::{
    Action, CatalogClient, Entries, Even, Item, Label, Number, Piece, Shelf, Tree,
};
use tests::scheme::Scheme;
use tests::world::World;

use crate::SERVER;

on_every_scheme! {
    create_is_not_understood_as_delete,
    each_change_is_refused_and_named,
    types_with_the_same_bytes_go_together,
}

async fn catalog(world: &World, codec: Codec) -> CatalogClient {
    world.channel_with(|builder| builder.codec(codec)).await.into()
}

#[track_caller]
fn check(status: &Status, method: &str, difference: &str) {
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(!status.is_retryable(), "{status}");
    let expected = format!(
        "Catalog.{method}: its types differ on the server: {difference}; build both ends from the \
         same types, or use the changed types in a method with a new name"
    );
    assert_eq!(status.message(), expected);
}

/// A regression: variants that had changed places were mistaken for one another.
async fn create_is_not_understood_as_delete(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    for codec in tests::CODECS {
        let catalog = catalog(&world, codec).await;
        // Repeatedly: a refused signature is never recorded as accepted.
        for action in [Action::Create, Action::Delete, Action::Create] {
            let status = catalog.act(action).await.expect_err("they are other actions");
            let both = "`action` is `enum { Create, Delete }` on the server and `enum { Delete, \
                        Create }` here";
            check(&status, "act", both);
        }
        assert_eq!(catalog.total().await, Ok(42));
    }
}

async fn each_change_is_refused_and_named(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let catalog = catalog(&world, Codec::default()).await;
    let status = catalog.store(Item { id: 1000, size: 1 }).await.expect_err("swapped");
    let both = "`item` is `struct { id, size }` on the server and `struct { size, id }` here";
    check(&status, "store", both);
    let shelf = Shelf { items: vec![Piece { id: 1, height: Some(1000) }] };
    let status = catalog.sort(0, vec![shelf]).await.expect_err("of another width");
    check(&status, "sort", "`shelves[].items[].height?` is `i32` on the server and `u32` here");
    let status = catalog.find(7).await.expect_err("no option");
    check(&status, "find", "`result.price` is `option` on the server and `u32` here");
    let Err(CallError::Status(status)) = catalog.remove(7).await else { panic!("renamed") };
    let both = "`error` is `enum { Locked, Gone }` on the server and `enum { Kept, Gone }` here";
    check(&status, "remove", both);
    let tree = Tree { value: 1, weight: 2, children: Vec::new() };
    let status = catalog.walk(&tree).await.expect_err("a further field");
    let both = "`tree` is `struct { value, children }` on the server and `struct { value, weight, \
                children }` here";
    check(&status, "walk", both);
    let entries = Entries([("a".to_owned(), 1)].into());
    let status = catalog.index(entries).await.expect_err("other values");
    check(&status, "index", "`entries{value}` is `u16` on the server and `u8` here");
    assert_eq!(catalog.total().await, Ok(42), "the connection lives");
}

async fn types_with_the_same_bytes_go_together(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    for codec in tests::CODECS {
        let catalog = catalog(&world, codec).await;
        let label = || Label {
            text: "text".into(),
            picture: Bulk::from(vec![7; 20_000]),
            new_name: Number(1),
        };
        assert_eq!(catalog.label(label()).await, Ok(4));
        assert_eq!(catalog.label(label()).await, Ok(4));
        let even = Even::try_from(4).expect("it is even");
        assert_eq!(catalog.even(even).await, Ok(4));
    }
}
