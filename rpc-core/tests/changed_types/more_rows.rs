//! More changes: those that were found by comparing `rpcctl schema diff` with calls, and those that
//! the rows of the documentation imply.

use crate::versions::row;

row! { a_needed_field_of_a_recursive_variant:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub enum Value { If(Box<If>), Lit(i64) }
        #[derive(Debug, Serialize, Deserialize)]
        pub struct If { cond: Value, then: Value }
    } Value::If(Box::new(If { cond: Value::Lit(1), then: Value::Lit(2) }));
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub enum Value { If(Box<If>), Lit(i64) }
        #[derive(Debug, Serialize, Deserialize)]
        pub struct If { cond: Value, then: Value, line: u32 }
    } Value::If(Box::new(If { cond: Value::Lit(1), then: Value::Lit(2), line: 3 }));
    new_reads Fails(&["the writer has no field `line`"]);
    old_reads Is("If(If { cond: Lit(1), then: Lit(2) })");
}

row! { keys_become_one_by_aliases:
    old {
        #[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Key { A, B }
        pub type Value = BTreeMap<Key, u8>;
    } BTreeMap::from([(Key::A, 1), (Key::B, 2)]);
    new {
        #[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Key { #[serde(alias = "A", alias = "B")] Ab }
        pub type Value = BTreeMap<Key, u8>;
    } BTreeMap::from([(Key::Ab, 1)]);
    new_reads Never(&["two of its entries can become one here", "`A` and `B` are one variant here"]);
    old_reads Is("{A: 1}");
}

row! { items_of_a_set_become_one_by_other:
    old {
        #[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Item { A, B, C }
        pub type Value = std::collections::BTreeSet<Item>;
    } Value::from([Item::A, Item::B, Item::C]);
    new {
        #[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Item { A, #[serde(other)] Other }
        pub type Value = std::collections::BTreeSet<Item>;
    } Value::from([Item::A]);
    new_reads Never(&["two of its entries can become one here", "`B` and `C` are one variant here"]);
    old_reads Is("{A}");
}

row! { a_list_becomes_a_set:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { of: Vec<u16>, count: u8 }
    } Value { of: vec![1, 2], count: 2 };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { count: u32, of: std::collections::BTreeSet<u32> }
    } Value { count: 2, of: [2, 1].into() };
    new_reads Is("Value { count: 2, of: {1, 2} }");
    old_reads Is("Value { of: [1, 2], count: 2 }");
}

row! { bytes_become_wider_numbers:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: Vec<u8> }
    } Value { a: vec![1, 2] };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: Vec<u16> }
    } Value { a: vec![1, 2] };
    new_reads Never(&["it is `bytes` at the writer and `sequence` here"]);
    old_reads Never(&["it is `sequence` at the writer and `bytes` here"]);
}

row! { an_option_is_put_around_an_option:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: Option<u32>, b: Option<u32> }
    } Value { a: None, b: Some(1) };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: Option<Option<u32>>, b: Option<Option<u32>> }
    } Value { a: None, b: Some(None) };
    new_reads Is("Value { a: None, b: Some(Some(1)) }");
    old_reads Fails(&[".b", "it is `None`, and here it must have a value"]);
}

row! { a_unit_variant_gets_fields:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub enum Value { A, B }
    } Value::A;
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub enum Value { A { #[serde(default)] x: u8 }, B }
    } Value::A { x: 9 };
    new_reads Is("A { x: 0 }");
    old_reads Fails(&["::A", "it is `struct` at the writer and `nothing` here"]);
}

row! { a_known_variant_becomes_other:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub enum Value { A, B(u8) }
    } Value::B(1);
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub enum Value { A, #[serde(other)] B }
    } Value::A;
    new_reads Is("B");
    old_reads Is("A");
}

row! { fields_of_a_variant_become_a_struct:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub enum Value { A { x: u8, y: u16 }, B }
    } Value::A { x: 1, y: 2 };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Pair { y: u16, x: u8 }
        #[derive(Debug, Serialize, Deserialize)]
        pub enum Value { B, A(Pair) }
    } Value::A(Pair { y: 4, x: 3 });
    new_reads Is("A(Pair { y: 2, x: 1 })");
    old_reads Is("A { x: 3, y: 4 }");
}

row! { what_is_left_out_is_read:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: u32, b: Option<u8> }
    } Value { a: 1, b: Some(2) };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value {
            #[serde(default, skip_serializing_if = "Option::is_none")] b: Option<u8>,
            a: u32,
            #[serde(default, skip_serializing_if = "String::is_empty")] c: String,
        }
    } Value { b: None, a: 3, c: String::new() };
    new_reads Is(r#"Value { b: Some(2), a: 1, c: "" }"#);
    old_reads Is("Value { a: 3, b: None }");
}

row! { a_whole_struct_has_a_default:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: u32 }
    } Value { a: 1 };
    new {
        #[derive(Debug, Default, Serialize, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        pub struct Value { more_of_it: String, a: u32, #[serde(skip)] hidden: u8 }
    } Value { more_of_it: "b".into(), a: 2, hidden: 3 };
    new_reads Is(r#"Value { more_of_it: "", a: 1, hidden: 0 }"#);
    old_reads Is("Value { a: 2 }");
}

row! { generics_and_results_grow:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Of<T> { t: T }
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: Of<u8>, b: Result<u8, String> }
    } Value { a: Of { t: 1 }, b: Err("e".into()) };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Of<T> { #[serde(default)] n: u8, t: T }
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { b: Result<u16, String>, a: Of<u64> }
    } Value { b: Ok(300), a: Of { n: 2, t: 3 } };
    new_reads Is(r#"Value { b: Err("e"), a: Of { n: 0, t: 1 } }"#);
    old_reads Fails(&[".b::Ok", "300 fits no u8"]);
}

row! { a_number_must_not_be_zero:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: u32 }
    } Value { a: 0 };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: std::num::NonZeroU64 }
    } Value { a: 1.try_into().unwrap() };
    new_reads Fails(&["nonzero"]);
    old_reads Is("Value { a: 1 }");
}

row! { a_struct_becomes_a_tuple_struct:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: u8, b: u8 }
    } Value { a: 1, b: 2 };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value(u8, u8);
    } Value(1, 2);
    new_reads Never(&["it is `struct` at the writer and `tuple of 2` here"]);
    old_reads Never(&["it is `tuple of 2` at the writer and `struct` here"]);
}

row! { pairs_become_a_map:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: Vec<(u8, u8)> }
    } Value { a: vec![(1, 2)] };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { a: BTreeMap<u8, u8> }
    } Value { a: BTreeMap::from([(1, 2)]) };
    new_reads Never(&["it is `sequence` at the writer and `map` here"]);
    old_reads Never(&["it is `map` at the writer and `sequence` here"]);
}

row! { a_key_loses_a_field:
    old {
        #[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct Key { a: u8, b: u8 }
        pub type Value = BTreeMap<Key, u8>;
    } BTreeMap::from([(Key { a: 1, b: 1 }, 1), (Key { a: 1, b: 2 }, 2)]);
    new {
        #[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct Key { a: u8 }
        pub type Value = BTreeMap<Key, u8>;
    } BTreeMap::from([(Key { a: 1 }, 1)]);
    new_reads Never(&["two of its entries can become one here", "the field `b` is unknown here"]);
    old_reads Never(&["the writer has no field `b`"]);
}

row! { swapped_names_are_obeyed:
    old {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { from: u32, to: u32 }
    } Value { from: 1, to: 2 };
    new {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Value { #[serde(rename = "to")] from: u32, #[serde(rename = "from")] to: u32 }
    } Value { from: 3, to: 4 };
    new_reads Is("Value { from: 2, to: 1 }");
    old_reads Is("Value { from: 4, to: 3 }");
}
