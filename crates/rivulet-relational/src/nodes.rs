//! What all nodes of plans have that are our own.

/// Compares nodes by what `parts` gives: their columns follow from it.
macro_rules! compare_by_parts {
    ($node:ident) => {
        impl PartialEq for $node {
            fn eq(&self, other: &Self) -> bool {
                self.parts() == other.parts()
            }
        }

        impl Eq for $node {}

        impl std::hash::Hash for $node {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                self.parts().hash(state);
            }
        }

        impl PartialOrd for $node {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                self.parts().partial_cmp(&other.parts())
            }
        }
    };
}

pub(crate) use compare_by_parts;
