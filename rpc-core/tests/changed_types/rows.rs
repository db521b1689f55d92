//! The rows of `docs/changing-types.md`.

use crate::versions::row;

row! { nothing_changed:
    old { #[derive(Debug, Serialize, Deserialize)] pub struct Value { id: u32 } } Value { id: 7 };
    new { #[derive(Debug, Serialize, Deserialize)] pub struct Value { id: u32 } } Value { id: 7 };
    new_reads Is("Value { id: 7 }");
    old_reads Is("Value { id: 7 }");
}

row! { a_field_with_a_default_is_added:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { id: u32, name: String }
    } Value { id: 7, name: "seven".into() };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value {
            #[serde(default)] size: u16,
            id: u32,
            note: Option<Vec<String>>,
            name: String,
        }
    } Value { size: 3, id: 7, note: Some(vec!["a".into()]), name: "seven".into() };
    new_reads Is(r#"Value { size: 0, id: 7, note: None, name: "seven" }"#);
    old_reads Is(r#"Value { id: 7, name: "seven" }"#);
}

row! { a_field_without_a_default_is_added:
    old { #[derive(Debug, Serialize, Deserialize)] pub struct Value { id: u32 } } Value { id: 7 };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { id: u32, size: u16 }
    } Value { id: 7, size: 1 };
    new_reads Never(&["Row.", "the writer has no field `size`: give it `#[serde(default)]`"]);
    old_reads Is("Value { id: 7 }");
}

row! { fields_are_moved:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: u32, b: u32, c: [u8; 2] }
    } Value { a: 1, b: 2, c: [3, 4] };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { c: [u8; 2], b: u32, a: u32 }
    } Value { a: 1, b: 2, c: [3, 4] };
    new_reads Is("Value { c: [3, 4], b: 2, a: 1 }");
    old_reads Is("Value { a: 1, b: 2, c: [3, 4] }");
}

row! { a_field_is_renamed_with_an_alias:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { mm: u32 }
    } Value { mm: 7 };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { #[serde(alias = "mm", alias = "zz")] aa: u32 }
    } Value { aa: 8 };
    new_reads Is("Value { aa: 7 }");
    old_reads Is("Value { mm: 8 }");
}

row! { two_fields_become_one:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: u32, b: u32 }
    } Value { a: 1, b: 2 };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { #[serde(alias = "b")] a: u32 }
    } Value { a: 1 };
    new_reads Never(&["the fields `a` and `b` of the writer are both `a` here"]);
    old_reads Never(&["the writer has no field `b`"]);
}

row! { unknown_fields_are_denied:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Value { a: u32 }
    } Value { a: 1 };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: u32, b: Option<u32> }
    } Value { a: 1, b: Some(2) };
    new_reads Is("Value { a: 1, b: None }");
    old_reads Never(&["the writer has a field `b`, and `deny_unknown_fields` refuses it"]);
}

row! { variants_are_moved_and_added:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub enum Value { Create, Delete { id: u32 } }
    } Value::Delete { id: 7 };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub enum Value { Delete { id: u64 }, Move(String), Create }
    } Value::Create;
    new_reads Is("Delete { id: 7 }");
    old_reads Is("Create");
}

row! { an_added_variant_is_used:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { action: Action }
        #[derive(Debug, Serialize, Deserialize)]
        pub enum Action { Create, Delete }
    } Value { action: Action::Delete };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { action: Action }
        #[derive(Debug, Serialize, Deserialize)]
        pub enum Action { Move(String), Delete, Create }
    } Value { action: Action::Move("there".into()) };
    new_reads Is("Value { action: Delete }");
    old_reads Fails(&["Row.", "action::Move", "this variant of the writer is unknown here"]);
}

row! { an_unknown_variant_is_other:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value(Action, u8);
        #[derive(Debug, Serialize, Deserialize)]
        pub enum Action { Create, #[serde(other)] Unknown }
    } Value(Action::Create, 9);
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value(Action, u8);
        #[derive(Debug, Serialize, Deserialize)]
        pub enum Action { Move(String, Vec<u32>), Create }
    } Value(Action::Move("there".into(), vec![1, 2]), 9);
    new_reads Is("Value(Create, 9)");
    old_reads Is("Value(Unknown, 9)");
}

row! { a_variant_is_renamed_with_an_alias:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub enum Value { Old(u8) }
    } Value::Old(7);
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub enum Value { Other, #[serde(alias = "Old")] New(u16) }
    } Value::New(8);
    new_reads Is("New(7)");
    old_reads Is("Old(8)");
}

row! { numbers_have_other_widths:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: u8, b: i32, c: f32, d: u128 }
    } Value { a: 200, b: 70, c: 0.5, d: 5 };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: i64, b: u16, c: f64, d: i8 }
    } Value { a: 200, b: 70, c: 0.5, d: 5 };
    new_reads Is("Value { a: 200, b: 70, c: 0.5, d: 5 }");
    old_reads Is("Value { a: 200, b: 70, c: 0.5, d: 5 }");
}

row! { a_number_is_too_large:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { items: Vec<Item> }
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Item { size: u8 }
    } Value { items: vec![Item { size: 1 }] };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { items: Vec<Item> }
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Item { size: u32 }
    } Value { items: vec![Item { size: 1 }, Item { size: 300 }] };
    new_reads Is("Value { items: [Item { size: 1 }] }");
    old_reads Fails(&["Row.", "items", ".size: 300 fits no u8"]);
}

row! { a_whole_number_is_no_float:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: u32 }
    } Value { a: 1 };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: f64 }
    } Value { a: 1.0 };
    new_reads Never(&["`u32` at the writer and `f64` here"]);
    old_reads Never(&["`f64` at the writer and `u32` here"]);
}

row! { a_value_becomes_an_option:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: String, b: u8 }
    } Value { a: "a".into(), b: 1 };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: Option<String>, b: Option<u8> }
    } Value { a: Some("a".into()), b: None };
    new_reads Is(r#"Value { a: Some("a"), b: Some(1) }"#);
    old_reads Fails(&["Row.", ".b: it is `None`, and here it must have a value"]);
}

row! { a_newtype_is_put_around:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { id: u64 }
    } Value { id: 7 };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Id(u64);
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { id: Id, more: Option<u8> }
    } Value { id: Id(7), more: None };
    new_reads Is("Value { id: Id(7), more: None }");
    old_reads Is("Value { id: 7 }");
}

row! { a_value_becomes_a_list:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: u32, b: BTreeMap<String, u8> }
    } Value { a: 1, b: BTreeMap::new() };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: Vec<u32>, b: Inner }
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Inner { x: u8 }
    } Value { a: vec![1], b: Inner { x: 1 } };
    // Every place is named.
    new_reads Never(&["a`: it is `u32` at the writer", "b`: it is `map` at the writer"]);
    old_reads Never(&["a`: it is `sequence` at the writer", "b`: it is `struct"]);
}

row! { a_signature_names_another_struct:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Named { a: u32 }
        pub type Value = Named;
    } Named { a: 1 };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Renamed { a: u32 }
        pub type Value = Renamed;
    } Renamed { a: 1 };
    new_reads Is("Renamed { a: 1 }");
    old_reads Is("Named { a: 1 }");
}

row! { a_recursive_type_gets_a_field:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { value: u32, children: Vec<Value> }
    } Value { value: 1, children: vec![Value { value: 2, children: vec![] }] };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { value: u8, #[serde(default)] weight: u8, children: Vec<Value> }
    } Value {
        value: 1,
        weight: 3,
        children: vec![Value { value: 2, weight: 4, children: vec![] }],
    };
    new_reads Is(
        "Value { value: 1, weight: 0, children: [Value { value: 2, weight: 0, children: [] }] }"
    );
    old_reads Is("Value { value: 1, children: [Value { value: 2, children: [] }] }");
}

row! { byte_strings_are_skipped_and_kept:
    old {
        #[derive(Serialize, Deserialize)]
        pub struct Value { head: rpc_core::Bulk, tail: Vec<u32> }
        impl std::fmt::Debug for Value {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{} {:?}", self.head.len(), self.tail)
            }
        }
    } Value { head: vec![1; 50_000].into(), tail: vec![1] };
    new {
        #[derive(Serialize, Deserialize)]
        pub struct Value {
            #[serde(default)] before: rpc_core::Bulk,
            tail: Vec<u64>,
            head: Option<rpc_core::Bulk>,
        }
        impl std::fmt::Debug for Value {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let len = |bulk: &rpc_core::Bulk| bulk.len();
                write!(f, "{} {:?} {:?}", len(&self.before), self.head.as_ref().map(len), self.tail)
            }
        }
    } Value {
        before: vec![2; 70_000].into(),
        tail: vec![2],
        head: Some(rpc_core::Bulk::from(vec![3; 60_000])),
    };
    new_reads Is("0 Some(50000) [1]");
    old_reads Is("60000 [2]");
}

row! { texts_lists_and_tuples_keep_their_shape:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: String, b: Vec<u32>, c: (u8, u8) }
    } Value { a: "a".into(), b: vec![1, 2], c: (1, 2) };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: char, b: [u32; 2], c: (u8, u8, u8) }
    } Value { a: 'a', b: [1, 2], c: (1, 2, 3) };
    new_reads Never(&["a`: it is `str` at the writer", "b`: it is `sequence` at the writer", "c`"]);
    old_reads Never(&["a`: it is `char` at the writer", "b`: it is `tuple", "c`"]);
}

row! { a_float_is_too_large:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: f32 }
    } Value { a: 0.5 };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: f64 }
    } Value { a: 1e300 };
    new_reads Is("Value { a: 0.5 }");
    old_reads Fails(&["Row.", ".a: ", "fits no f32"]);
}

row! { the_contents_of_a_variant_do_not_fit:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub enum Value { Plain, Box { width: u8 } }
    } Value::Plain;
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub enum Value { Plain, Box { width: u8, height: u8 } }
    } Value::Box { width: 1, height: 2 };
    new_reads Is("Plain");
    old_reads Is("Box { width: 1 }");
}
