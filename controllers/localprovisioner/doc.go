// Package localprovisioner is the leader's part of the volumes that the cluster makes on disks of
// its nodes. They are for claims whose class has the provisioner local.barque.io. It keeps
// upstream's contract of external provisioners. The binder marks a claim for its provisioner by an
// annotation, and the scheduler adds another with the node.
//
//	claim, with selected-node ──▶ PV (local, on that node) ──▶ bound by the binder
//	                                                             │ the claim goes: Released
//	gone ◀── finalizer off ◀── directory deleted ◀── deleted ◀───┘
//	            by the node                          by this controller
//
// The node makes the directory for the first pod, and deletes it, also after it was down meanwhile
// (see kubelet/localvolumes). The data of a node that has left the cluster cannot be deleted: the
// finalizer of its PV is removed here, once the Node object is gone.
//
// The package also creates the default class, once (see defaults). It publishes the nodes' free
// capacity, so that the scheduler places no volume that does not fit. Sizes of volumes are not
// enforced.
package localprovisioner
