// Package cis judges a running cluster by the rows of the CIS Kubernetes Benchmark v1.12.
//
// [Rows] are the rows. Each one is a number of the benchmark, the demand in a few words of ours,
// and a pure function from [Evidence] to a [Verdict]. [Judge] applies all of them.
//
// Invariants:
//   - No row passes without evidence. Evidence that could not be collected gives [Unknown]. A
//     question that has failed is no answer.
//   - Servers may have different flags, so a row about them needs the evidence of each one.
//   - Where Barque has no such part (no etcd process, no manifests of the control plane), the row
//     is judged by what corresponds to it, or is [NotApplicable] with the reason, which is
//     evidence too.
//   - A verdict Fail names the flag or command that mends it.
//
// A row about objects of users, such as roles and pods, is never Fail for them: [Person] lists the
// objects for a person to judge, and a cluster without such objects passes.
//
// It asks nobody: adminapi/remote/evidence collects.
package cis
