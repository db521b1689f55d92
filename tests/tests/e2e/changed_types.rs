//! Types that share a name and differ in content: fields and variants are read by their names.

use rpc_core::{Bulk, Code, Codec, Status};
use tests::changed::new::{
    Action, CatalogClient, Entries, Even, Item, Label, Number, Piece, Shelf, Tree,
};
use tests::scheme::Scheme;
use tests::world::World;

use crate::SERVER;

on_every_scheme! {
    create_is_not_understood_as_delete,
    changed_types_are_converted_by_name,
    types_with_the_same_bytes_go_together,
}

async fn catalog(world: &World, codec: Codec) -> CatalogClient {
    world.channel_with(|builder| builder.codec(codec)).await.into()
}

/// A regression: variants that had changed places were mistaken for one another.
async fn create_is_not_understood_as_delete(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    for codec in tests::CODECS {
        let catalog = catalog(&world, codec).await;
        for (action, name) in
            [(Action::Create, "Create"), (Action::Delete, "Delete"), (Action::Create, "Create")]
        {
            assert_eq!(catalog.act(action).await.as_deref(), Ok(name));
        }
        assert_eq!(catalog.total().await, Ok(42));
    }
}

async fn changed_types_are_converted_by_name(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    for codec in tests::CODECS {
        let catalog = catalog(&world, codec).await;
        // From the second time on the plans are there.
        for _ in 0..3 {
            assert_eq!(catalog.store(Item { id: 1000, size: 1 }).await, Ok(1000));
            let shelves =
                |height| vec![Shelf { items: vec![Piece { id: 1, height: Some(height) }] }];
            assert_eq!(catalog.sort(0, shelves(1000)).await, Ok(vec![1]));
            let status = catalog.sort(0, shelves(u32::MAX)).await.expect_err("it does not fit");
            check(&status, Code::InvalidArgument, &["Catalog.sort", "height", "4294967295", "i32"]);
            let status = catalog.find(7).await.expect_err("there is no price");
            check(&status, Code::DataLoss, &["Catalog.find", "price", "None"]);
            assert_eq!(catalog.remove(7).await, Ok(1));
            let tree = Tree { value: 1, weight: 2, children: Vec::new() };
            assert_eq!(catalog.walk(&tree).await, Ok(1));
            let entries = Entries([("a".to_owned(), 1)].into());
            assert_eq!(catalog.index(entries).await, Ok(1));
            assert_eq!(catalog.total().await, Ok(42), "the connection lives");
        }
    }
}

#[track_caller]
fn check(status: &Status, code: Code, words: &[&str]) {
    assert_eq!(status.code(), code, "{status}");
    assert!(!status.is_retryable(), "{status}");
    for word in words {
        assert!(status.message().contains(word), "`{status}` lacks `{word}`");
    }
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
