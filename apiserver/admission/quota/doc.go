// Package quota computes the usage of a namespace's objects, and charges it to the namespace's
// ResourceQuotas before an object is stored.
//
// [Evaluators] compute the usage of an object; the quota controller, which corrects the sums,
// counts with the same ones. [Quota] is the admission step.
//
// Invariants:
//   - The status of a quota is changed by compare and set on the version of the decision. So used
//     never exceeds hard, however many servers charge the same quota.
//   - A request that one quota refuses is refused, independent of the others, also if another
//     server changed one of them meanwhile. Its charges to other quotas are given back.
//
// The checks of one request are the library's. Its loop around them is not used: after a conflict
// it only checks the conflicting quotas again, and lets a request pass that another quota has
// refused (kubernetes/kubernetes#141904).
package quota
