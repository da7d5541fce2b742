// Package attachdetach decides on which nodes CSI volumes are attached. It creates and deletes
// VolumeAttachments; the driver's external-attacher acts on them. Volumes of other kinds, and of
// drivers with attachRequired false, need no attachment.
//
// Invariants:
//   - A volume for one node only is attached to one node at a time: an existing attachment, in
//     whatever state, prevents another one.
//   - A volume is detached only when its node does not use it any more (status.volumesInUse). On a
//     node that is not ready this is unknown: there it is detached after ForceAfter. It is detached
//     at once if the taint out-of-service declares the node off.
//
// The state of one volume is decided by a plain function (decide.go).
package attachdetach
