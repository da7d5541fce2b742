// Package quota counts what the objects of a namespace use, and charges it to the namespace's
// ResourceQuotas before an object is stored.
//
// [Evaluators] know what an object uses; the quota controller, which corrects the books, counts
// with the same ones. [Quota] is the admission step.
//
// Invariants:
//   - The status of a quota is changed by compare and set on the version that a decision was made
//     upon. So used never exceeds hard, however many servers charge the same quota.
//   - A request that one quota refuses is refused, whatever the others say, also when another
//     server changed one of them meanwhile. What it has been charged elsewhere is given back.
//
// The checks of one request are the library's. Its loop around them is not used: after a conflict
// it looks at the quotas that conflicted alone, and lets pass what another one has refused
// (kubernetes/kubernetes#141904).
package quota
