//! Makes a schema the smallest one with the same types: equal types become one.

use std::collections::HashMap;

use crate::schema::{Id, Schema, Type};

impl Schema {
    /// The same types, each once, by their first appearance: from what comes first, depth first.
    /// Schemas of the same types become equal. For a schema of this process, as it takes up to the
    /// square of the number of types.
    #[must_use]
    pub fn minimal(self) -> Self {
        let (types, roots) = self.into_parts();
        let classes = classes(&types);
        let mut new: HashMap<usize, Id> = HashMap::new();
        let mut order: Vec<Id> = Vec::new();
        let mut stack: Vec<Id> = roots.iter().rev().map(|(_, id)| *id).collect();
        while let Some(id) = stack.pop() {
            if new.contains_key(&classes[id]) {
                continue;
            }
            new.insert(classes[id], order.len());
            order.push(id);
            let first = stack.len();
            stack.extend(types[id].parts());
            stack[first..].reverse();
        }
        let moved = |id: Id| new[&classes[id]];
        let fewer = order.iter().map(|id| types[*id].clone().with_ids(moved)).collect();
        let roots = roots.into_iter().map(|(root, id)| (root, moved(id))).collect();
        // The same types have the same flaws: none.
        Self::new(fewer, roots).unwrap_or_default()
    }
}

/// A number for each type: equal ones have the same.
fn classes(types: &[Type]) -> Vec<usize> {
    // All of one kind are equal until their parts differ.
    let mut known = HashMap::new();
    let kinds = types.iter().map(|it| {
        let next = known.len();
        *known.entry(it.clone().with_ids(|_| 0)).or_insert(next)
    });
    let mut classes: Vec<usize> = kinds.collect();
    let mut count = known.len();
    loop {
        let mut known = HashMap::new();
        let finer = types.iter().enumerate().map(|(id, it)| {
            let parts: Vec<usize> = it.parts().map(|part| classes[part]).collect();
            let next = known.len();
            *known.entry((classes[id], parts)).or_insert(next)
        });
        let finer: Vec<usize> = finer.collect();
        if known.len() == count {
            return classes;
        }
        (classes, count) = (finer, known.len());
    }
}

#[cfg(test)]
mod tests {
    use crate::text::parse;

    #[test]
    fn equal_types_become_one() {
        let long = "\
result: #5
error: #0
#0 struct { next: #1, value: #4 }
#1 option #2
#2 struct { next: #3, value: #4 }
#3 option #0
#4 u8
#5 tuple (#6, #0, #7)
#6 u8
#7 u16
#8 i8
";
        let short = "\
result: #0
error: #2
#0 tuple (#1, #2, #4)
#1 u8
#2 struct { next: #3, value: #1 }
#3 option #2
#4 u16
";
        let minimal = parse(long).unwrap().minimal();
        assert_eq!(minimal.to_string(), short);
        assert_eq!(minimal.clone().minimal(), minimal);
    }

    #[test]
    fn other_names_are_other_types() {
        let text = "\
result: #0
#0 tuple (#1, #2, #3)
#1 struct { a: #4 }
#2 struct { a?: #4 }
#3 struct { a | b: #4 }
#4 u8
";
        assert_eq!(parse(text).unwrap().minimal().types().len(), 5);
    }
}
