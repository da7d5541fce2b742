// Package volumes has the scheduler's plugins about volumes: VolumeBinding chooses volumes for
// claims and storage for new ones, NodeVolumeLimits counts attachments, VolumeRestrictions keeps
// volumes to one pod, and VolumeZone follows the zones of volumes.
//
// Invariant: a choice that is not written yet holds for all later pods: VolumeBinding reads its
// informers with its own choices over them, until it writes or gives them back.
package volumes
