// Package attachdetach says which CSI volumes are attached to which nodes. It creates and deletes
// VolumeAttachments; the driver's external-attacher acts on them. Volumes of other kinds, and those
// of drivers with attachRequired false, need no attachment.
//
// Invariants:
//   - A volume that only one node may have is attached to one node at a time: an attachment that
//     still exists, whatever its state, keeps another one from being made.
//   - A volume is detached only when its node does not use it any more (status.volumesInUse). When
//     that cannot be known, because the node is not ready, it is detached after ForceAfter; and at
//     once when a user has said, by the taint out-of-service, that the node is off.
//
// The state of one volume is decided by a plain function (decide.go).
package attachdetach
