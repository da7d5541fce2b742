// Package resourceclaim makes ResourceClaims from the templates that pods name, and releases those
// that pods no longer use:
//
//   - a pod's claim is created once, owned by the pod, and named in the pod's status;
//   - a pod that got a node without the scheduler is entered as a user of its allocated claims;
//   - users that have ended or are gone are removed from a claim; after the last one, the claim is
//     deallocated, and loses its finalizer;
//   - a claim that was made for a pod which has ended is deleted.
//
// Allocating devices is the scheduler's part.
package resourceclaim
