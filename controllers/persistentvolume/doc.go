// Package persistentvolume binds claims to volumes, and reclaims volumes whose claims have gone.
//
// A claim and its volume name each other: the volume's spec.claimRef has the claim's UID, and the
// claim's spec.volumeName has the volume. The volume is written first. A binding that stops half
// way is therefore finished by the next look at the claim.
//
//	volume:  Pending ──▶ Available ──▶ Bound ──▶ Released ──▶ (deleted)
//	                                                 └──▶ Failed
//	claim:   Pending ──▶ Bound ──▶ Lost
//
// Invariants:
//   - Two claims are never bound to one volume. A volume is written with its resourceVersion, so
//     that of two writers one fails.
//   - A claim whose class waits for its first consumer is bound only to a volume that names it. The
//     scheduler chooses that volume.
//   - A volume is released only when the API server itself confirms that its claim is gone.
//
// Plain functions decide about one claim or one volume (decide_claim.go, decide_volume.go). One
// worker acts for all keys, so that claims do not compete for a volume.
//
// Provisioners make and delete volumes, by annotations that this package writes. It deletes only
// the data of hostPath volumes below /tmp, as upstream does.
package persistentvolume
